"""What is asked of a fleet, and when, in open loops: traces replayed, questions to a corpus. Pure and seeded; knows
nothing of replicas, routers or the virtual clock."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from loadtest.simulator.job import Ask
from loadtest.simulator.profile import Profile
from loadtest.simulator.text import Ids, Text, hashes, num_tokens, of_blocks
from loadtest.trace import Row, Trace, load_trace
from router.core import Prompt

# Blocks of what comes without any: a trace of lengths only.
PLAIN_BLOCK_SIZE = 512
_COPIES_WITHIN_S = 60.0
Half = Literal["first", "second"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at_s` at a load of 1."""

    at_s: float
    ask: Ask


@dataclass(frozen=True, slots=True)
class Workload:
    """An open loop. The load divides the times."""

    arrivals: tuple[Arrival, ...]
    block_size: int
    adapters: tuple[str, ...] = ()

    @property
    def num_requests(self) -> int:
        return len(self.arrivals)


@dataclass(eq=False, slots=True)
class Writer:
    """Turns texts into asks, each with a number and an answer of its own."""

    profile: Profile
    block_size: int
    ids: Ids = field(default_factory=Ids)

    def ask(
        self,
        number: int,
        text: Text,
        num_output_tokens: int,
        *,
        adapter: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
    ) -> Ask:
        length = num_tokens(text)
        return Ask(
            number=number,
            text=text,
            prompt=Prompt(length, hashes(text, self.block_size, adapter), self.block_size),
            num_output_tokens=max(1, num_output_tokens),
            answer_token=self.ids["answer", number],
            idle_prefill_s=self.profile.prefill_s(length),
            adapter=adapter,
            tenant=tenant,
            session=session,
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """How traces become requests. `begin_s` leaves out what comes before, `seconds` keeps so much from there, and
    `half` the first or the second half of each one's rows: what was tuned on one can be checked on the other. `copies`
    of each row come, the others within a minute after it. A trace's tenants are its `adapters`, or it has as many as
    `num_adapters`, by Zipf's law: then the exponent is 1. `prefixes_of`: each tenant's prompts begin as those of this
    trace do, one after the other."""

    traces: tuple[str, ...]
    block_size: int | None = None
    begin_s: float = 0.0
    seconds: float | None = None
    half: Half | None = None
    copies: int = 1
    has_adapters: bool = False
    num_adapters: int | None = None
    prefixes_of: str | None = None


def replayed(plan: Replay, profile: Profile, seed: int) -> Workload:
    """The rows of all these traces, merged by time. Raises UsageError as `load_trace` does."""
    loaded = [load_trace(name, seed) for name in plan.traces]
    size = plan.block_size or max(trace.block_size or PLAIN_BLOCK_SIZE for trace in loaded)
    writer = Writer(profile, size)
    rows = [
        _Placed(at_s, place, row, trace.block_size or size)
        for place, trace in enumerate(loaded)
        for at_s, row in _kept(plan, trace)
    ]
    ordered = sorted(_copied(rows, plan.copies, seed), key=lambda each: (each.at_s, each.place))
    if plan.prefixes_of is not None:
        ordered = list(_with_prefixes(ordered, load_trace(plan.prefixes_of, seed)))
    adapters = _adapters(plan, len(ordered), [each.row.tenant for each in ordered], seed)
    arrivals = tuple(
        Arrival(each.at_s, writer.ask(number, _text(writer, each, number), each.row.num_output_tokens,
                                      adapter=adapter, tenant=each.row.tenant))
        for number, (each, adapter) in enumerate(zip(ordered, adapters, strict=True))
    )  # fmt: skip
    return Workload(arrivals, size, tuple(sorted({name for name in adapters if name is not None})))


class Corpus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Questions to prefixes, at a Poisson rate that is the load: requests a second. Lengths in tokens."""

    prefixes: int
    prefix_tokens: int
    questions: int
    question_tokens: int
    output_tokens: int
    requests: int


def corpus(plan: Corpus, profile: Profile, seed: int, block_size: int | None = None) -> Workload:
    """Each prompt comes again when all have come."""
    chance = random.Random(f"{seed}/corpus")
    size = block_size or PLAIN_BLOCK_SIZE
    writer = Writer(profile, size)
    prompts: list[Text] = [
        ((writer.ids["prefix", prefix], plan.prefix_tokens),
         (writer.ids["question", prefix, question], plan.question_tokens))
        for prefix in range(plan.prefixes)
        for question in range(plan.questions)
    ]  # fmt: skip
    arrivals, at_s = [], 0.0
    for number, text in zip(range(plan.requests), _shuffled_again_and_again(prompts, chance), strict=False):
        at_s += chance.expovariate(1.0)
        arrivals.append(Arrival(at_s, writer.ask(number, text, plan.output_tokens)))
    return Workload(tuple(arrivals), size)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A row of the trace at `place`, when it comes, and what its block ids stand for. `owner` and `copy` keep equal ids
    apart."""

    at_s: float
    place: int
    row: Row
    block_tokens: int
    copy: int = 0
    owner: str | None = None


def _kept(plan: Replay, trace: Trace) -> Iterator[tuple[float, Row]]:
    """Rows of the trace and when they come: a second half begins at once."""
    end_s = math.inf if plan.seconds is None else plan.begin_s + plan.seconds
    rows = [row for row in trace.rows if plan.begin_s <= row.at_s < end_s]
    middle = len(rows) // 2
    if plan.half is not None:
        rows = rows[:middle] if plan.half == "first" else rows[middle:]
    since_s = rows[0].at_s if plan.half == "second" and rows else plan.begin_s
    for row in rows:
        yield row.at_s - since_s, row


def _copied(rows: list[_Placed], copies: int, seed: int) -> Iterator[_Placed]:
    chance = random.Random(f"{seed}/copies")
    for each in rows:
        yield each
        for copy in range(1, copies):
            yield replace(each, at_s=each.at_s + chance.uniform(0.0, _COPIES_WITHIN_S), copy=copy)


def _with_prefixes(rows: list[_Placed], trace: Trace) -> Iterator[_Placed]:
    """Each tenant goes through the trace's rows by itself: its prompts share what those share, and nothing with the
    prompts of others."""
    num_had: Counter[str | None] = Counter()
    for each in rows:
        tenant = each.row.tenant
        blocks = trace.rows[num_had[tenant] % len(trace.rows)].block_ids
        num_had[tenant] += 1
        row = replace(each.row, block_ids=blocks)
        yield replace(each, row=row, block_tokens=trace.block_size or each.block_tokens, owner=tenant)


def _text(writer: Writer, each: _Placed, number: int) -> Text:
    names = [(each.place, each.copy, each.owner, block) for block in each.row.block_ids]
    return of_blocks(writer.ids, names, each.block_tokens, each.row.num_input_tokens, ("row", number))


def _adapters(plan: Replay, num_rows: int, tenants: list[str | None], seed: int) -> list[str | None]:
    if plan.num_adapters is not None:
        chance = random.Random(f"{seed}/adapters")
        names = [f"adapter-{number:04}" for number in range(plan.num_adapters)]
        return list(chance.choices(names, [1.0 / (rank + 1) for rank in range(len(names))], k=num_rows))
    return tenants if plan.has_adapters else [None] * num_rows


def _shuffled_again_and_again(prompts: list[Text], chance: random.Random) -> Iterator[Text]:
    while True:
        chance.shuffle(prompts)
        yield from prompts
