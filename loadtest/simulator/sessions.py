"""Closed loops: users who read an answer, think, and ask again with all that was said. Pure and seeded; lengths, turns
and pauses are drawn from a workload of `traces/workload_catalog.json`. Knows nothing of replicas or routers."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import Any

import msgspec

from loadtest.errors import UsageError
from loadtest.flags import nearest
from loadtest.simulator.job import Ask
from loadtest.simulator.workload import Writer

_CATALOG = Path(__file__).parent.parent / "traces" / "workload_catalog.json"


class Sessions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many requests in all, of users who follow the catalog's `kind`; no prompt with its answer is longer than
    `max_tokens`: there a session ends. The load is the number of users at a time."""

    kind: str
    requests: int
    max_tokens: int = 131_072


@dataclass(frozen=True, slots=True)
class Turn:
    """Asked `after_s` the answer before, or the session's start."""

    ask: Ask
    after_s: float


@dataclass(eq=False, slots=True)
class Users:
    """Session by session, as they begin: the n-th is the same whatever policy serves it."""

    plan: Sessions
    writer: Writer
    seed: int
    adapters: tuple[str, ...] = ()
    _law: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._law = _kind(self.plan.kind)

    @property
    def num_requests(self) -> int:
        return self.plan.requests

    @property
    def block_size(self) -> int:
        return self.writer.block_size

    def session(self, number: int) -> Iterator[Turn]:
        """Its turns, written out as they are taken."""
        chance, law, ids = random.Random(f"{self.seed}/session/{number}"), self._law, self.writer.ids
        text = [(ids["system"], round(_draw(law["system_prompt"], chance)))]
        num_new = round(_draw(law["input_sequence_length"], chance)) - text[0][1]
        after_s = chance.uniform(0.0, law["time_between_turns"]["mean"])
        for turn in range(max(1, round(_draw(law["number_of_turns"], chance)))):
            num_output = max(1, round(_draw(law["output_sequence_length"], chance)))
            room = self.plan.max_tokens - num_output - sum(count for _, count in text)
            if room <= 0 or (turn and room < num_new):
                return
            text.append((ids["said", number, turn], max(1, min(num_new, room))))
            name = f"session-{number}"
            ask = self.writer.ask(number * 10_000 + turn, tuple(text), num_output, session=name)
            yield Turn(ask, after_s)
            text.append((ask.answer_token, num_output))
            num_new = max(1, round(_draw(law["input_sequence_length_per_turn"], chance)))
            after_s = _draw(law["time_between_turns"], chance)


def check_kind(kind: str) -> None:
    """Raises UsageError, with the nearest name, where the catalog has no such workload of several turns."""
    _kind(kind)


def _kind(kind: str) -> Mapping[str, Any]:
    known = {name: law for name, law in _catalog().items() if law.get("multi_turn") and "system_prompt" in law}
    if kind not in known:
        raise UsageError(f"sessions.kind: there is no {kind!r}{nearest(kind, tuple(known))}; known: {', '.join(known)}")
    law: Mapping[str, Any] = known[kind]
    return law


def _draw(law: Mapping[str, Any], chance: random.Random) -> float:
    mean, deviation = law["mean"], law["standard_deviation"]
    match law["distribution_type"]:
        case "log_normal":
            variance = log(1.0 + (deviation / mean) ** 2)
            value = chance.lognormvariate(log(mean) - variance / 2, sqrt(variance))
        case "exponential":
            value = chance.expovariate(1.0 / mean)
        case "bimodal":
            value = chance.gauss(mean + chance.choice((-1.0, 1.0)) * deviation, deviation / 4)
        case "uniform":
            value = chance.uniform(law["min"], law["max"])
        case _:
            value = chance.gauss(mean, deviation)
    return float(min(max(value, law["min"]), law["max"]))


@cache
def _catalog() -> Mapping[str, Any]:
    workloads: Mapping[str, Any] = json.loads(_CATALOG.read_text(encoding="utf-8"))["workloads"]
    return workloads
