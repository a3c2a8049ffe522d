"""What is asked of a fleet, and when: open loops from traces, made-up corpora. Pure and seeded; knows nothing of
replicas, routers or the virtual clock."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadtest.simulator.job import Ask
from loadtest.simulator.profile import Profile
from loadtest.simulator.text import Ids, Text, hashes, num_tokens, of_blocks
from loadtest.trace import Row, load_trace
from router.core import Prompt

# Blocks of what comes without any: a trace of lengths only.
PLAIN_BLOCK_SIZE = 512


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


@dataclass(eq=False, slots=True)
class Writer:
    """Turns texts into asks, each with a number and an answer of its own."""

    profile: Profile
    block_size: int
    ids: Ids

    def ask(self, number: int, text: Text, num_output_tokens: int, tenant: str | None = None) -> Ask:
        length = num_tokens(text)
        return Ask(
            number=number,
            text=text,
            prompt=Prompt(length, hashes(text, self.block_size), self.block_size),
            num_output_tokens=max(1, num_output_tokens),
            answer_token=self.ids["answer", number],
            idle_prefill_s=self.profile.prefill_s(length),
            tenant=tenant,
        )


def replayed(traces: Sequence[str], profile: Profile, seed: int, block_size: int | None = None) -> Workload:
    """The rows of all these traces, merged by time. Raises UsageError as `load_trace` does."""
    ids = Ids()
    loaded = [load_trace(name, seed) for name in traces]
    size = block_size or max(trace.block_size or PLAIN_BLOCK_SIZE for trace in loaded)
    writer = Writer(profile, size, ids)
    rows = sorted(
        ((row.at_s, place, row) for place, trace in enumerate(loaded) for row in trace.rows), key=lambda each: each[:2]
    )
    return Workload(tuple(_written(writer, rows, [trace.block_size or size for trace in loaded])), size)


def corpus(
    num_prefixes: int,
    prefix_tokens: int,
    num_questions: int,
    question_tokens: int,
    output_tokens: int,
    num_requests: int,
    profile: Profile,
    seed: int,
    block_size: int = PLAIN_BLOCK_SIZE,
) -> Workload:
    """Poisson arrivals, one a second at a load of 1, of questions to prefixes; each comes again when all have come."""
    chance = random.Random(f"{seed}/corpus")
    ids = Ids()
    writer = Writer(profile, block_size, ids)
    prompts: list[Text] = [
        ((ids["prefix", prefix], prefix_tokens), (ids["question", prefix, question], question_tokens))
        for prefix in range(num_prefixes)
        for question in range(num_questions)
    ]
    arrivals, at_s = [], 0.0
    for number, text in zip(range(num_requests), _shuffled_again_and_again(prompts, chance), strict=False):
        at_s += chance.expovariate(1.0)
        arrivals.append(Arrival(at_s, writer.ask(number, text, output_tokens)))
    return Workload(tuple(arrivals), block_size)


def _written(writer: Writer, rows: Iterable[tuple[float, int, Row]], block_sizes: Sequence[int]) -> Iterator[Arrival]:
    for number, (at_s, place, row) in enumerate(rows):
        names = [(place, block) for block in row.block_ids]
        text = of_blocks(writer.ids, names, block_sizes[place], row.num_input_tokens, ("row", place, number))
        yield Arrival(at_s, writer.ask(number, text, row.num_output_tokens, row.tenant))


def _shuffled_again_and_again(prompts: list[Text], chance: random.Random) -> Iterator[Text]:
    while True:
        chance.shuffle(prompts)
        yield from prompts
