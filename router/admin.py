"""Commands that ask a running router's admin port. Knows its JSON; shows it as tables."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import aiohttp

from router.config import credentials

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


async def show_replicas(url: str, *, as_json: bool) -> int:
    """Print the replica table. 1 when the router cannot be asked."""
    answer = await _ask("GET", f"{url.rstrip('/')}/admin/replicas")
    if answer is None:
        return 1
    try:
        rows = answer["replicas"]
        print(json.dumps(rows, indent=2) if as_json else _table(rows))
    except (KeyError, TypeError):
        print(f"pointsman: {url} answers, but not as a router's admin port", file=sys.stderr)
        return 1
    return 0


async def show_adapters(url: str, *, as_json: bool) -> int:
    """Print where each adapter stands on each replica. 1 when the router cannot be asked."""
    answer = await _ask("GET", f"{url.rstrip('/')}/admin/adapters")
    if answer is None:
        return 1
    rows = answer.get("adapters", [])
    columns = ("lora_name", "replica", "state", "reason")
    table = [["ADAPTER", "REPLICA", "STATE", "REASON"], *([str(row[name]) for name in columns] for row in rows)]
    print(json.dumps(rows, indent=2) if as_json else _aligned(table))
    return 0


async def drain(url: str, replica: str, *, undo: bool) -> int:
    """Drain a replica, or undo it. 1 when the router cannot be asked or knows no such replica."""
    verb = "undrain" if undo else "drain"
    answer = await _ask("POST", f"{url.rstrip('/')}/admin/replicas/{quote(replica, safe=':')}/{verb}")
    if answer is None:
        return 1
    print(f"{replica} {'serves again' if undo else 'gets nothing new'}")
    return 0


async def explain(url: str, message: str, model: str | None, *, as_json: bool) -> int:
    """Print where this message would be sent now, and why. 1 when the router cannot be asked."""
    url = url.rstrip("/")
    if model is None:
        answer = await _ask("GET", f"{url}/admin/replicas")
        served = [name for row in answer["replicas"] for name in row["models"]] if answer is not None else []
        if not served:
            if answer is not None:
                print("pointsman: no replica has said yet what it serves; name a model with --model", file=sys.stderr)
            return 1
        model = served[0]
    body = {"model": model, "messages": [{"role": "user", "content": message}], "stream": True}
    answer = await _ask("POST", f"{url}/admin/explain", body)
    if answer is None:
        return 1
    print(json.dumps(answer, indent=2) if as_json else _explained(answer))
    return 0


async def show_webhooks(url: str, *, as_json: bool) -> int:
    """Print the webhooks that were given up. 1 when the router cannot be asked."""
    answer = await _ask("GET", f"{url.rstrip('/')}/admin/webhooks")
    if answer is None:
        return 1
    if as_json:
        print(json.dumps(answer["webhooks"], indent=2))
        return 0
    rows = [[each["id"], each["owner"], each["status"], each["fault"]] for each in answer["webhooks"]]
    print(_aligned([["JOB", "TENANT", "STATUS", "FAULT"], *rows]))
    return 0


async def replay_webhooks(url: str, ids: Sequence[str]) -> int:
    """Send webhooks anew; all that were given up where no id is named. 1 where one could not be."""
    url = url.rstrip("/")
    if not ids:
        answer = await _ask("GET", f"{url}/admin/webhooks")
        if answer is None:
            return 1
        ids = [each["id"] for each in answer["webhooks"]]
    told = [await _ask("POST", f"{url}/admin/webhooks/{quote(id)}/replay") for id in ids]
    num_replayed = sum(each is not None for each in told)
    print(f"{num_replayed} of {len(ids)} are sent again")
    return 0 if num_replayed == len(ids) else 1


async def show_secrets(url: str, *, rotates: bool, overlap_s: float) -> int:
    """Print which secrets sign webhooks; with `rotates`, a new one first, which is never shown again."""
    where = f"{url.rstrip('/')}/admin/webhooks/secrets"
    answer = await _ask("POST", where, {"overlap_seconds": overlap_s}) if rotates else await _ask("GET", where)
    if answer is None:
        return 1
    if rotates:
        print(answer["secret"])
        print("the line above is never shown again; it signs from now on", file=sys.stderr)
    rows = [
        [
            each["id"],
            each["from"],
            *("-" if at is None else _moment(at) for at in (each["created_at"], each["signs_until"])),
        ]
        for each in answer["secrets"]
    ]
    print(_aligned([["SECRET", "FROM", "CREATED", "SIGNS UNTIL"], *rows]), file=sys.stderr if rotates else sys.stdout)
    return 0


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).isoformat(" ", "seconds")


def _explained(answer: Mapping[str, Any]) -> str:
    """A line for each replica, its cost and what that is made of, in one unit; the chosen one has a star."""
    candidates = answer["candidates"]
    names = list(dict.fromkeys(name for each in candidates for name in each["terms"]))
    names = [name for name in names if any(each["terms"].get(name) for each in candidates)]
    unit, show = _UNITS.get(answer["unit"], _PLAIN)
    rows = [["", "REPLICA", "CACHED TOKENS", f"COST{unit}", *(f"{name.upper()}{unit}" for name in names)]]
    for each in candidates:
        cost = show(each["cost"]) if each["cost"] is not None else each["excluded"]
        terms = [show(each["terms"][name]) if name in each["terms"] else "" for name in names]
        rows.append(["*" if each["is_chosen"] else "", each["replica"], str(each["matched_tokens"]), cost, *terms])
    head = f"{answer['prompt_tokens']} prompt tokens, {answer['expected_output_tokens']} expected; {answer['reason']}"
    return f"{head}\n{_aligned(rows)}"


async def _ask(method: str, url: str, body: Mapping[str, object] | None = None) -> Any:
    """The JSON answer, or None after one sentence on standard error."""
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, headers=credentials(os.environ)) as session,
            session.request(method, url, json=body) as response,
        ):
            answer = await response.json()
            if response.status < 400 and isinstance(answer, dict):
                return answer
            print(f"pointsman: {_message(answer)}", file=sys.stderr)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        print(f"pointsman: no router answers at {url}: {error}", file=sys.stderr)
    return None


# What stands behind the name of a column, and how its numbers are shown. Work is tokens, blocks or requests, as the
# term's name says.
_PLAIN: tuple[str, Callable[[float], str]] = ("", lambda value: f"{value:g}")
_UNITS: Mapping[object, tuple[str, Callable[[float], str]]] = {
    "seconds": (" ms", lambda value: f"{value * 1e3:.1f}"),
    "share": (" 0..1", lambda value: f"{value:.3f}"),
}
_COLUMNS = {
    "REPLICA": "id",
    "STATE": "state",
    "BREAKER": "breaker",
    "IN FLIGHT": "in_flight",
    "RUNNING": "running",
    "WAITING": "waiting",
    "KV USED": "kv_used_ratio",
    "BLOCKS KNOWN": "cached_blocks",
    "SPEED FROM": "speed_source",
    "KNOWLEDGE": "knowledge",
    "MODELS": "models",
}


def _message(answer: Any) -> str:
    try:
        return str(answer["error"]["message"])
    except (KeyError, TypeError):
        return f"the router answered {json.dumps(answer)[:500]}"


def _table(replicas: list[Mapping[str, Any]]) -> str:
    """Columns as wide as they must be: a pipe or a narrow terminal never loses a name."""
    return _aligned([list(_COLUMNS), *([_shown(row[name]) for name in _COLUMNS.values()] for row in replicas)])


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0%}"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)
