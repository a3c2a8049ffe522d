"""Guesses which tokens come next, from the text itself: what followed the last time that it ended as it ends now.

Knows token ids, how earlier guesses fared, and what room a batch leaves for more. Must not know models. A guess costs
a few dictionary look-ups, and one that fails costs only the rows that were computed for it: the tokens come out as
without it.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import cycle, islice

from engine.batch import Chunk
from engine.blocks import BlockPool
from engine.sequence import Sequence

# Longer ends are surer, so they are looked up first.
_END_LENGTHS = (4, 3, 2)
# So many guessed tokens of all sequences together: beyond it, steps get longer by more than guesses save.
MAX_DRAFT_TOKENS = 32
_LONGEST_PAUSE = 32


@dataclass(eq=False, slots=True)
class PromptLookup:
    """Of one sequence. It pauses after guesses that came to nothing, each time for twice as many steps."""

    _places: dict[tuple[int, ...], int] = field(default_factory=dict)
    _num_indexed: int = 0
    _pause: int = 0
    _next_pause: int = 1

    def guess(self, tokens: List[int], most: int) -> tuple[int, ...]:
        """At most `most` tokens that may follow `tokens`, which has only grown since the last call."""
        self._index(tokens)
        if self._pause:
            self._pause -= 1
            return ()
        for length in _END_LENGTHS:
            place = self._places.get(tuple(tokens[-length:]))
            if place is not None:
                # What repeats itself up to the end is taken to go on so.
                return tuple(islice(cycle(tokens[place : place + most]), most))
        return ()

    def learn(self, num_accepted: int) -> None:
        """How many tokens of the last guess were right."""
        if num_accepted:
            self._next_pause = 1
        else:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)

    def _index(self, tokens: List[int]) -> None:
        """By each run of tokens, the place behind its last occurrence. The end itself has nothing behind it yet."""
        places = self._places
        for place in range(max(1, self._num_indexed), len(tokens)):
            for length in _END_LENGTHS:
                if length <= place:
                    places[tuple(tokens[place - length : place])] = place
        self._num_indexed = len(tokens)

    def __repr__(self) -> str:
        return f"<PromptLookup {self._num_indexed} tokens, pauses for {self._pause} steps>"


@dataclass(frozen=True, slots=True)
class Drafting:
    """`num_tokens` is what one sequence guesses in a step, at most."""

    num_tokens: int

    def extend(self, chunks: List[Chunk], budget: int, pool: BlockPool) -> list[Chunk]:
        """Decodes go on with guesses, as far as budget and blocks are left over: nobody waits for them."""
        decodes = [chunk.num_tokens == 1 and chunk.samples and chunk.sequence.num_output_tokens > 0 for chunk in chunks]
        most = min(budget, MAX_DRAFT_TOKENS) // max(1, sum(decodes))
        return [
            self._extended(chunk, most, pool) if is_decode else chunk
            for chunk, is_decode in zip(chunks, decodes, strict=True)
        ]

    def _extended(self, chunk: Chunk, most: int, pool: BlockPool) -> Chunk:
        draft = self._draft(chunk.sequence, most)
        if not draft:
            return chunk
        table, num_tokens = chunk.sequence.table, len(chunk.sequence.tokens)
        missing = pool.blocks_for(num_tokens + len(draft)) - len(table)
        if missing > 0 and pool.can_allocate(missing):
            table += pool.allocate(missing)
        room = len(table) * pool.block_size - num_tokens
        return Chunk(chunk.sequence, chunk.start, 1, draft[:room])

    def _draft(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """No more than `most`, and none that would come after the last token that is wanted."""
        sampling = sequence.request.sampling
        # What these allow depends on the tokens before, which are not certain yet.
        if sequence.structure is not None or sampling.is_penalised:
            return ()
        most = min(most, self.num_tokens, sampling.max_tokens - sequence.num_output_tokens - 1)
        if most < 1:
            return ()
        if sequence.lookup is None:
            sequence.lookup = PromptLookup()
        return sequence.lookup.guess(sequence.tokens, most)
