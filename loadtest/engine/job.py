"""What every engine is asked to do, and the figures that it answers with.

Knows texts and token ids. Must not know engines, processes or tables.
"""

from pathlib import Path
from typing import Literal, Self

import msgspec
from tokenizers import Tokenizer

Clock = Literal["cpu", "wall"]

TEXT = (
    "The signal box stood at the end of the platform, and from its windows one could see both lines. Every morning "
    "the signalman counted the levers, wiped the brass and wrote the date into the book. Trains came from the sea in "
    "the west and from the mountains in the east; some carried fish, some timber, and one, twice a day, people. When "
    "two of them wanted the same track he had to decide who would wait, and he did so without hurry, since hurry, he "
    "used to say, is how trains meet. In winter the points froze, and he went out with a lamp and a kettle. "
)
QUESTIONS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is the largest planet?\nA:",
    "La capitale de l'Italie est",
    '{"name": "Ada", "born": 1815, "known_for": ["',
    "Water boils at",
    "To be, or not to be, that is the",
)


class Job(msgspec.Struct, frozen=True):
    """See engine/measure.py, which reads it."""

    model: str
    dtype: str
    quantized: str
    threads: int
    clock: Clock
    prompts: list[list[int]]
    num_tokens: int
    batches: list[int]
    prefill: list[int]
    turn: list[int]
    turn_tokens: list[int]
    questions: list[list[int]]
    num_answer_tokens: int
    num_rounds: int


class Figures(msgspec.Struct, frozen=True):
    """Tokens a second: behind the first by batch size, and of a prompt. Milliseconds of a turn by its new tokens, where
    they were measured; greedy answers; the process's own memory where it tells."""

    decode: dict[int, float]
    prefill: float
    turns_ms: dict[int, float]
    answers: list[list[int]]
    load_s: float
    anonymous_mib: float | None = None

    def better_of(self, other: Self) -> Self:
        """The best of both counts. An answer that is not the same in both is none."""
        return msgspec.structs.replace(
            self,
            decode={batch: max(speed, other.decode[batch]) for batch, speed in self.decode.items()},
            prefill=max(self.prefill, other.prefill),
            turns_ms={size: min(ms, other.turns_ms[size]) for size, ms in self.turns_ms.items()},
            answers=[one if one == two else [] for one, two in zip(self.answers, other.answers, strict=True)],
            load_s=min(self.load_s, other.load_s),
        )


class Lengths(msgspec.Struct, frozen=True):
    """Tokens of each part of a job."""

    prompt: int = 32
    answer: int = 24
    decode: int = 24
    prefill: int = 512
    turn: int = 1024


QUICK = Lengths(answer=8, decode=12, turn=512)


def job_for(folder: Path, lengths: Lengths, threads: int, clock: Clock, num_rounds: int) -> Job:
    """With the tokenizer of a Hugging Face folder; model, dtype and quantized are each engine's own."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words: list[int] = tokenizer.encode(TEXT * 20).ids

    def piece(start: int, length: int) -> list[int]:
        return words[start : start + length]

    return Job(
        model=str(folder),
        dtype="float32",
        quantized="auto",
        threads=threads,
        clock=clock,
        prompts=[piece(3 * index, lengths.prompt) for index in range(32)],
        num_tokens=lengths.decode,
        batches=[1, 8, 32],
        prefill=piece(0, lengths.prefill),
        turn=piece(7, lengths.turn),
        turn_tokens=[16, 64, 256],
        questions=[tokenizer.encode(question).ids for question in QUESTIONS],
        num_answer_tokens=lengths.answer,
        num_rounds=num_rounds,
    )
