"""What to send: conversations, their texts and arrival times. Pure and seeded; knows nothing of sockets or clocks.

Texts are derived from keys: an equal key gives an equal text, and a shorter text is the beginning of a longer one
with the same key. So equal blocks of a trace are equal text, and another seed shares nothing with this one.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from loadtest.settings import RunSettings
from loadtest.trace import Row, Trace
from loadtest.words import WORDS


@dataclass(frozen=True, slots=True)
class Piece:
    """A text not yet written out."""

    key: str
    num_words: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and how long the answer may be."""

    pieces: tuple[Piece, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns sent one after the other; `at_s` is the arrival of the first, None in a closed loop."""

    at_s: float | None
    system: tuple[Piece, ...]
    turns: tuple[Turn, ...]
    user: str | None = None


def text_of(pieces: tuple[Piece, ...]) -> str:
    """Write the pieces out, one word for each byte of a hash of the key."""
    digests = [hashlib.shake_128(piece.key.encode()).digest(piece.num_words) for piece in pieces]
    return " ".join([WORDS[byte] for digest in digests for byte in digest])


def conversations(settings: RunSettings, trace: Trace | None) -> Iterator[Conversation]:
    """All conversations of a run, by arrival; endless when only time ends the run."""
    num_requests = settings.num_planned(len(trace.rows) if trace else None)
    if trace is not None:
        return islice(_replayed(settings, trace), num_requests)
    return _made_up(settings, num_requests)


def _made_up(settings: RunSettings, num_requests: int | None) -> Iterator[Conversation]:
    arrivals = _arrivals(settings)
    num_shared = round(settings.prefix_share * settings.input_tokens)
    shared = (Piece(f"{settings.seed}/shared", num_shared),) if num_shared else ()
    for number in count():
        num_left = settings.turns if num_requests is None else num_requests - number * settings.turns
        if num_left <= 0:
            return
        num_turns = min(settings.turns, num_left)
        turns = tuple(_turn(settings, number, turn, num_shared) for turn in range(num_turns))
        yield Conversation(next(arrivals), shared, turns)


def _turn(settings: RunSettings, number: int, turn: int, num_shared: int) -> Turn:
    key = f"{settings.seed}/{number}/{turn}"
    lengths = random.Random(key)
    # The shared part opens the conversation; later turns bring a whole prompt's worth of new text.
    mean_input = settings.input_tokens - (num_shared if turn == 0 else 0)
    return Turn((Piece(key, _length(lengths, mean_input)),), _length(lengths, settings.output_tokens))


def _length(lengths: random.Random, mean: int) -> int:
    return max(1, round(mean * lengths.uniform(0.5, 1.5)))


def _arrivals(settings: RunSettings) -> Iterator[float | None]:
    """Poisson arrivals of conversations, so that turns together come at the asked rate; None for a closed loop."""
    gaps = random.Random(f"{settings.seed}/arrivals")
    at_s = 0.0
    while True:
        yield None if settings.rate is None else at_s
        if settings.rate is not None:
            at_s += gaps.expovariate(settings.rate / settings.turns)


def _replayed(settings: RunSettings, trace: Trace) -> Iterator[Conversation]:
    """One conversation of one turn for each row: a row's blocks already hold the history."""
    arrivals = _arrivals(settings)
    for number, row in enumerate(trace.rows):
        at_s = next(arrivals)
        if settings.rate is None and settings.concurrency is None:
            at_s = row.at_s / settings.speedup
        max_tokens = _shrunk(row.num_output_tokens, settings.shrink)
        turn = Turn(_row_pieces(settings, trace, number, row), max_tokens)
        yield Conversation(at_s, (), (turn,), row.tenant)


def _row_pieces(settings: RunSettings, trace: Trace, number: int, row: Row) -> tuple[Piece, ...]:
    root = f"{settings.seed}/{trace.name}"
    num_left = _shrunk(row.num_input_tokens, settings.shrink)
    pieces = []
    block_words = _shrunk(trace.block_size, settings.shrink) if trace.block_size else 0
    for block_id in row.block_ids:
        num_words = min(block_words, num_left)
        pieces.append(Piece(f"{root}/block/{block_id}", num_words))
        num_left -= num_words
    if num_left:
        pieces.append(Piece(f"{root}/row/{number}", num_left))
    return tuple(piece for piece in pieces if piece.num_words)


def _shrunk(length: int, factor: float) -> int:
    return max(1, round(length / factor))
