"""`python -m loadtest.handover PREFILL DECODE`: a prompt's KV from one engine to another, against computing it there.

Speaks to two engines over HTTP as a router would, and reads what they say that moving KV took. Knows OpenAI's
completions and `kv_transfer_params`; nothing of how KV travels.
"""

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from loadtest.errors import LoadError

SIZES = (256, 1024, 2048)
ANSWER_TOKENS = 16
# Ids that any vocabulary has.
_LEAST_ID, _MOST_ID = 100, 1000
_MOVED = re.compile(
    r"^pointsman_engine_kv_transfer_(bytes|seconds)_total\{(?=[^}]*direction=\"in\")[^}]*\} (\S+)$", re.M
)


@dataclass(frozen=True, slots=True)
class Moved:
    """Medians over the prompts of a size. `is_equal`: the answers were those of the engine that had computed the KV."""

    num_tokens: int
    computed_s: float
    handed_over_s: float
    transfer_s: float
    transfer_bytes: float
    is_equal: bool


@dataclass(frozen=True, slots=True)
class Engine:
    session: aiohttp.ClientSession
    url: str
    model: str

    @classmethod
    async def find(cls, session: aiohttp.ClientSession, url: str) -> "Engine":
        """Raises LoadError if there is none."""
        try:
            async with session.get(f"{url}/v1/models") as answer:
                answer.raise_for_status()
                return cls(session, url, (await answer.json())["data"][0]["id"])
        except (aiohttp.ClientError, ValueError, LookupError) as error:
            raise LoadError(f"{url}: no engine answers: {error}") from None

    async def complete(self, prompt: list[int], num_tokens: int, **fields: Any) -> dict[str, Any]:
        body = {"model": self.model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        async with self.session.post(f"{self.url}/v1/completions", json=body | fields) as answer:
            found: dict[str, Any] = await answer.json()
        if "error" in found:
            raise LoadError(f"{self.url}: {found['error']['message']}")
        return found

    async def moved_in(self) -> dict[str, float]:
        """Bytes and seconds so far."""
        async with self.session.get(f"{self.url}/metrics") as answer:
            return {name: float(value) for name, value in _MOVED.findall(await answer.text())}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.handover", description="KV from an engine to another.")
    parser.add_argument("prefill", help="URL of an engine started with --kv-transfer-port")
    parser.add_argument("decode", help="URL of another engine with the same model")
    parser.add_argument("--rounds", type=int, default=3, help="prompts of each size; default 3")
    parser.add_argument("--tokens", type=int, nargs="+", default=SIZES, help="prompt sizes; default 256 1024 2048")
    flags = parser.parse_args(argv)
    try:
        print_table(asyncio.run(measure(flags.prefill, flags.decode, flags.tokens, flags.rounds)))
    except LoadError as error:
        print(f"loadtest.handover: {error}", file=sys.stderr)
        return error.exit_code
    return 0


async def measure(prefill_url: str, decode_url: str, sizes: Sequence[int], num_rounds: int) -> list[Moved]:
    """Raises LoadError for what an engine refuses."""
    async with aiohttp.ClientSession() as session:
        prefill, decode = await Engine.find(session, prefill_url), await Engine.find(session, decode_url)
        return [_median([await _move(prefill, decode, size) for _ in range(num_rounds)]) for size in sizes]


async def _move(prefill: Engine, decode: Engine, size: int) -> Moved:
    """Two prompts that nobody has seen: one computed, one handed over."""
    seen_by_none, handed_over = ([random.randrange(_LEAST_ID, _MOST_ID) for _ in range(size)] for _ in range(2))
    start = perf_counter()
    await decode.complete(seen_by_none, 1)
    computed_s = perf_counter() - start
    begun = await prefill.complete(handed_over, 1, kv_transfer_params={"do_remote_decode": True})
    before, start = await decode.moved_in(), perf_counter()
    await decode.complete(handed_over, 1, kv_transfer_params=begun["kv_transfer_params"])
    handed_over_s, after = perf_counter() - start, await decode.moved_in()
    answers = [(await each.complete(handed_over, ANSWER_TOKENS))["choices"][0]["text"] for each in (prefill, decode)]
    return Moved(
        num_tokens=size,
        computed_s=computed_s,
        handed_over_s=handed_over_s,
        transfer_s=after["seconds"] - before["seconds"],
        transfer_bytes=after["bytes"] - before["bytes"],
        is_equal=answers[0] == answers[1],
    )


def _median(rounds: Sequence[Moved]) -> Moved:
    return Moved(
        num_tokens=rounds[0].num_tokens,
        computed_s=median(each.computed_s for each in rounds),
        handed_over_s=median(each.handed_over_s for each in rounds),
        transfer_s=median(each.transfer_s for each in rounds),
        transfer_bytes=median(each.transfer_bytes for each in rounds),
        is_equal=all(each.is_equal for each in rounds),
    )


def print_table(sizes: Sequence[Moved]) -> None:
    table = Table(title="a prompt's KV from engine to engine", title_justify="left")
    for header in ("prompt tokens", "first token, computed", "handed over", "of it moving", "MB", "MB/s", "answers"):
        table.add_column(header, justify="right")
    for moved in sizes:
        megabytes = moved.transfer_bytes / 1e6
        speed = f"{megabytes / moved.transfer_s:.0f}" if moved.transfer_s else "-"
        times = (f"{seconds * 1e3:.0f} ms" for seconds in (moved.computed_s, moved.handed_over_s, moved.transfer_s))
        table.add_row(str(moved.num_tokens), *times, f"{megabytes:.1f}", speed, "equal" if moved.is_equal else "DIFFER")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
