"""`python -m loadtest.micro prefix [TOKENIZER]`: microseconds of the router's synchronous cores, one call at a time;
`... events` and `... index` are in `micro_caches.py`, `... engine` is in `engine_steps.py`.

Imports the cores and calls them as a router does. Knows nothing of sockets and runs nothing beside them. TOKENIZER is a
tokenizer.json, a folder with one, or a file with what an engine serves at /pointsman/tokenizer; without it, the
bundled small model's, which another process takes out of its file.
"""

import argparse
import gc
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.decisions import measure_decisions, print_decisions
from loadtest.engine_steps import measure_engine, print_steps
from loadtest.errors import LoadError, UsageError
from loadtest.micro_caches import Row, measure_events, measure_index, print_rows
from loadtest.words import WORDS
from router.core import Pool, Prompt, Request, Surface
from router.prefix.index import BlockIndex
from router.prefix.reader import Prompts
from router.prefix.source import SourceError, TokenizerSource

SIZES = {"0.5 KB": 500, "8 KB": 8192, "64 KB": 65536}
# JSON around the two texts of a body.
FRAME_BYTES = 150
NUM_BODIES = 64
# As many bodies in a row have the same system prompt.
NUM_ALIKE = 4
NEW_SHARE = 1 / 16
NUM_REPLICAS = 64
# Of a conversation, each with a question and, but for the last, an answer; bytes of either.
NUM_TURNS = 24
TURN_BYTES = 200
_MODEL = "smollm2-135m-instruct"
_SERVE = (
    "import json, sys; from engine.fetch import fetch; from engine.tokenizer import Tokenizer; "
    "print(json.dumps(Tokenizer.load(fetch(sys.argv[1])).served()))"
)

Chat = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians over the requests of a case, in microseconds."""

    num_requests: int
    read_us: float
    match_us: float
    insert_us: float

    @property
    def sum_us(self) -> float:
        return self.read_us + self.match_us + self.insert_us


@dataclass(eq=False, slots=True)
class Bench:
    """A reader and an index as a router has them, and the replica that each request would be sent to."""

    prompts: Prompts
    index: BlockIndex
    pool: Pool
    replicas: Iterator[str]

    @classmethod
    def of(cls, source: TokenizerSource, cache_bytes: int = 64 * 2**20) -> "Bench":
        # All text is read at once: what a thread would do is to be measured too.
        prompts = Prompts(cache_bytes=cache_bytes, inline_bytes=2**30)
        pool = Pool("model", block_size=source.block_size or 16)
        prompts.configure(pool, source)
        return cls(prompts, BlockIndex(64 * 2**20), pool, (f"replica-{at % NUM_REPLICAS}" for at in count()))

    def measure(self, chats: Iterable[Chat]) -> Costs:
        """Read, match and insert one after the other, as they come in a router."""
        times = [self._times_ns(_request(chat)) for chat in chats]
        read, match, insert = (median(column) / 1e3 for column in zip(*times, strict=True))
        return Costs(len(times), read, match, insert)

    def read_new(self, chat: Chat) -> int:
        """Bytes of it that are not known. They are now."""
        found = self.prompts._find(_request(chat), self.pool, None)
        if isinstance(found, Prompt):
            return 0
        found.finish(found.tokenizer.encode_all(found.texts))
        return sum(len(text) for text in found.texts)

    def _times_ns(self, request: Request) -> tuple[int, int, int]:
        replica = next(self.replicas)
        start = perf_counter_ns()
        prompt = self._read(request)
        read = perf_counter_ns()
        self.index.match(prompt.block_hashes)
        matched = perf_counter_ns()
        self.index.insert(replica, prompt.block_hashes)
        return read - start, matched - read, perf_counter_ns() - matched

    def _read(self, request: Request) -> Prompt:
        prompt = self.prompts.read_now(request, self.pool, None)
        if prompt is None:
            raise LoadError("a prompt was left to a thread")
        return prompt


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of one core; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.micro", description="Microseconds of the router's cores.")
    parser.add_argument("core", choices=["prefix", "events", "index", "decision", "engine"])
    parser.add_argument("tokenizer", type=Path, nargs="?", help=f"default: that of {_MODEL}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each body is sent; default 5")
    flags = parser.parse_args(argv)
    try:
        if flags.rounds < 1:
            raise UsageError(f"--rounds: must be at least 1, not {flags.rounds}")
        if flags.core == "prefix":
            source = load_source(flags.tokenizer)
            print_table(measure_prefix(source, flags.rounds))
            print_rows("prefix: conversations, each asked turn by turn", measure_turns(source))
        elif flags.core == "engine":
            print_steps(measure_engine(flags.rounds))
        elif flags.core == "decision":
            print_decisions(measure_decisions())
        elif flags.core == "events":
            print_rows("events: KV blocks that replicas tell of", measure_events())
        else:
            print_rows("index: who holds which blocks", measure_index())
    except LoadError as error:
        print(f"loadtest.micro: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def load_source(path: Path | None) -> TokenizerSource:
    """Raises LoadError where there is no tokenizer, or no chat template with it."""
    try:
        served = _served(path)
        if path is None or served is not None:
            source = TokenizerSource.from_served(served)
        else:
            source = TokenizerSource.from_path(path)
    except SourceError as error:
        raise LoadError(str(error)) from error
    if source.chat_template is None:
        raise LoadError(f"{path or _MODEL}: there is no chat template")
    return source


def measure_prefix(source: TokenizerSource, num_rounds: int) -> dict[str, Costs]:
    """Costs by case."""
    bench, costs = Bench.of(source), {}
    gc.collect()
    gc.freeze()
    gc.disable()  # In a router it is tuned to run seldom.
    try:
        for name, before, chats in _cases(num_rounds):
            if before:
                bench.measure(before)
            costs[name] = bench.measure(chats)
    finally:
        gc.enable()
        gc.unfreeze()
    return costs


def measure_turns(source: TokenizerSource) -> list[Row]:
    """How much of conversations was known when they were asked anew, and what it takes to know it."""
    rng, bench, forgetful = random.Random(NUM_TURNS), Bench.of(source), Bench.of(source, cache_bytes=0)
    talks = [_talk(rng) for _ in range(NUM_BODIES)]
    asked = [talk[: 2 * turn] for turn in range(1, NUM_TURNS + 1) for talk in talks]
    num_new, num_all = (sum(each.read_new(chat) for chat in asked) for each in (bench, forgetful))
    known = bench.prompts._known
    return [
        Row(f"known of what was asked over {NUM_TURNS} turns", 100.0 * (1.0 - num_new / num_all), "% of the bytes"),
        Row("memory", known.num_bytes / len(talks), "bytes a conversation"),
        Row("memory", known.num_bytes / len(known._places), "bytes a place from which texts go on"),
        Row("memory", known.num_bytes / sum(len(str(talk)) for talk in talks), "bytes a byte of conversation"),
    ]


def print_table(costs: dict[str, Costs]) -> None:
    table = Table(title="prefix: microseconds a request, medians", title_justify="left")
    table.add_column("body")
    for header in ("requests", "read", "match", "insert", "sum"):
        table.add_column(header, justify="right")
    for case, cost in costs.items():
        values = (cost.read_us, cost.match_us, cost.insert_us, cost.sum_us)
        table.add_row(case, str(cost.num_requests), *(f"{value:.1f}" for value in values))
    Console().print(table)


def _served(path: Path | None) -> Any:
    """The document of a file with what an engine serves, or of the bundled model; None for other paths."""
    if path is None:
        command = [sys.executable, "-c", _SERVE, _MODEL]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise LoadError(f"the tokenizer of {_MODEL} cannot be had; name one, or see above")
        return json.loads(done.stdout)
    try:
        document = None if path.is_dir() else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: {error}") from error
    return document if isinstance(document, dict) and "chat_template" in document else None


def _cases(num_rounds: int) -> Iterator[tuple[str, list[Chat], list[Chat]]]:
    """Name, what is sent before, what is measured."""
    for name, size in SIZES.items():
        rng = random.Random(size)
        bodies = [body for _ in range(NUM_BODIES // NUM_ALIKE) for body in _alike(rng, size, NUM_ALIKE)]
        yield f"{name}, seen before", bodies, bodies * num_rounds
        yield f"{name}, last sixteenth new", [], [_with_new_end(rng, body) for body in bodies * num_rounds]
        yield f"{name}, all new", [], [body for _ in range(NUM_BODIES) for body in _alike(rng, size, 1)]
    rng = random.Random(NUM_TURNS)
    talks = [_talk(rng) for _ in range(NUM_BODIES)]
    yield f"{NUM_TURNS} turns, the last one new", [talk[:-2] for talk in talks], talks
    yield f"{NUM_TURNS} turns, seen before", [], talks * num_rounds


def _alike(rng: random.Random, size: int, num_bodies: int) -> Iterator[Chat]:
    """Bodies of so many bytes that have the same system prompt, half of each."""
    half = (size - FRAME_BYTES) // 2
    system = _text(rng, half)
    return ([_message("system", system), _message("user", _text(rng, half))] for _ in range(num_bodies))


def _with_new_end(rng: random.Random, chat: Chat) -> Chat:
    text = chat[-1]["content"]
    num_new = round(sum(len(message["content"]) for message in chat) * NEW_SHARE)
    return [*chat[:-1], _message("user", text[:-num_new] + _text(rng, num_new))]


def _talk(rng: random.Random) -> Chat:
    roles = ["system", *("user", "assistant") * (NUM_TURNS - 1), "user"]
    return [_message(role, _text(rng, TURN_BYTES)) for role in roles]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _text(rng: random.Random, size: int) -> str:
    return " ".join(rng.choices(WORDS, k=size // 2))[:size]


def _request(chat: Chat) -> Request:
    return Request("r", Surface.CHAT, "model", b"", 0.0, 1.0, messages=chat)


if __name__ == "__main__":
    sys.exit(main())
