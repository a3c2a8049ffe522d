"""The two orders by which an engine's adapters come and go. Knows vLLM's form, which our engine has too, and SGLang's
paths, and what their refusals mean; knows no states."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
import msgspec

from router.core import Replica
from router.errors import UpstreamError
from router.replicas.fetch import Answer, fetch

MOST_REASON = 500


class Verb(StrEnum):
    LOAD = "load"
    UNLOAD = "unload"


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """vLLM's body; an order to unload has no path."""

    lora_name: str
    lora_path: str | None = None

    @property
    def verb(self) -> Verb:
        return Verb.UNLOAD if self.lora_path is None else Verb.LOAD


@dataclass(frozen=True, slots=True)
class Failure:
    """`is_refused`: the replica says that the order itself is wrong, so that asking again would not help."""

    reason: str
    is_refused: bool


async def give(
    session: aiohttp.ClientSession, replica: Replica, orders: Sequence[Order], timeout_s: float
) -> Failure | None:
    """One after the other, to the first that fails. What is so already counts as done."""
    for order in orders:
        path = f"/{order.verb}_lora_adapter" if replica.engine == "sglang" else f"/v1/{order.verb}_lora_adapter"
        try:
            answer = await fetch(session, replica.spec, path, timeout_s, msgspec.json.encode(order))
        except UpstreamError as error:
            return Failure(str(error)[:MOST_REASON], is_refused=False)
        failure = _failure(order, answer)
        if failure is not None:
            return failure
    return None


def _failure(order: Order, answer: Answer) -> Failure | None:
    if 200 <= answer.status < 300:
        return None
    said = _said(answer.body)
    names_it, words = order.lora_name in said, said.lower()
    if names_it and order.verb is Verb.LOAD and "already" in words:
        return None  # by another router, or somebody's own hand
    if (
        names_it
        and order.verb is Verb.UNLOAD
        and any(each in words for each in ("not loaded", "not found", "be found"))
    ):
        return None
    if answer.status in (404, 405) and not names_it:
        said = f"this engine loads no adapters while it runs ({answer.status} {said})"
    is_refused = 400 <= answer.status < 500 and answer.status != 429
    return Failure((said or f"it answered with status {answer.status}")[:MOST_REASON], is_refused)


def _said(body: bytes) -> str:
    """An engine's own words, of whatever shape."""
    text = body.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text[:MOST_REASON]
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail", "error_message") if found.get(key)), "")
    return found if isinstance(found, str) else json.dumps(found)[:MOST_REASON]
