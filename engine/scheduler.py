"""Chooses what the next step computes: continuous batching under a token budget.

Knows sequences and the block pool. Must not know tensors, text or time.

A sequence is admitted when the blocks for all its present tokens are there, so a prefill never stops half way for
want of blocks; only a decode that enters a new block can find none, and then the last sequence in order gives up
its blocks and is computed again later. The first in order can always go on, so there is no deadlock.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from engine.blocks import BlockPool
from engine.sequence import FinishReason, Request, Sequence, SequenceState


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute the KV of `num_tokens` tokens from `start`; sample behind them if they are the last known."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        return self.end == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """The chunks of one step, decodes first."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(eq=False, slots=True)
class Scheduler:
    """`max_num_batched_tokens` must be at least `max_num_seqs`, so that each running sequence can decode."""

    pool: BlockPool
    max_num_seqs: int
    max_num_batched_tokens: int
    num_preemptions: int
    num_queried_tokens: int
    num_hit_tokens: int
    _waiting: list[Sequence]
    _running: list[Sequence]
    _sequences: dict[str, Sequence]
    _arrivals: "count[int]"

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) is less than max_num_seqs ({max_num_seqs})"
            )
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.num_preemptions = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._waiting = []
        self._running = []
        self._sequences = {}
        self._arrivals = count()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_queued_prefill_tokens(self) -> int:
        """Uncached tokens not yet computed, of waiting sequences and of running ones still in prefill."""
        waiting = sum(sequence.num_uncached_tokens for sequence in list(self._waiting))
        running = (sequence.num_uncomputed for sequence in list(self._running))
        return waiting + sum(tokens for tokens in running if tokens > 1)

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that this pool could never finish."""
        num_tokens = len(request.prompt) + request.sampling.max_tokens
        if self.pool.blocks_for(num_tokens) > self.pool.num_blocks:
            room = self.pool.num_blocks * self.pool.block_size
            raise ValueError(f"{num_tokens} tokens asked for, the KV cache holds {room}")

    def add(self, request: Request) -> Sequence:
        """Queues a request. Raises ValueError as `check` does."""
        self.check(request)
        sequence = Sequence(request, order=(request.priority, next(self._arrivals)))
        self._sequences[request.id] = sequence
        self._enqueue(sequence)
        return sequence

    def find(self, request_id: str) -> Sequence | None:
        return self._sequences.get(request_id)

    def schedule(self) -> Batch:
        """What to compute next; empty only when nothing is queued."""
        num_preemptions = self.num_preemptions
        decodes = tuple(self._decodes())
        # Blocks that a preemption just freed are for the decodes: admitting now would thrash.
        may_admit = self.num_preemptions == num_preemptions
        prefills = tuple(self._prefills(self.max_num_batched_tokens - len(decodes), may_admit))
        return Batch(decodes + prefills)

    def computed(self, chunk: Chunk) -> None:
        """The chunk's KV is in its blocks: count it, and share the blocks that became full."""
        sequence = chunk.sequence
        first, full = (tokens // self.pool.block_size for tokens in (chunk.start, chunk.end))
        if first < full:
            hashes = sequence.hashes(full, self.pool.block_size)
            for index in range(first, full):
                self.pool.publish(sequence.table, index, hashes[index], sequence.tokens, sequence.request.salt)
        sequence.num_computed = chunk.end

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Takes a queued sequence out, whatever it was doing, and frees its blocks."""
        del self._sequences[sequence.request.id]
        _remove(self._waiting if sequence.state is SequenceState.WAITING else self._running, sequence)
        sequence.finish(reason)
        self._give_up_blocks(sequence)

    def _decodes(self) -> Iterator[Chunk]:
        """One token for each sequence that has only its newest token to compute, in order."""
        for sequence in list(self._running):
            if sequence.num_uncomputed == 1 and self._has_room(sequence):
                yield Chunk(sequence, sequence.num_computed, 1)

    def _has_room(self, sequence: Sequence) -> bool:
        """Makes room for one more token, at the cost of the last in order; False if that was this one."""
        while sequence.state is SequenceState.RUNNING:
            missing = self.pool.blocks_for(len(sequence.tokens)) - len(sequence.table)
            if self.pool.can_allocate(missing):
                sequence.table += self.pool.allocate(missing)
                return True
            self._preempt(self._running[-1])
        return False

    def _prefills(self, budget: int, may_admit: bool) -> Iterator[Chunk]:
        """Running prefills go on, then the queue's head is admitted while it fits: nobody overtakes it."""
        for sequence in self._running:
            if budget and sequence.num_uncomputed > 1:
                budget -= (chunk := _prefill_chunk(sequence, budget)).num_tokens
                yield chunk
        while budget and may_admit and self._waiting and len(self._running) < self.max_num_seqs:
            sequence = self._waiting[0]
            if not self._admit(sequence):
                return
            budget -= (chunk := _prefill_chunk(sequence, budget)).num_tokens
            yield chunk

    def _admit(self, sequence: Sequence) -> bool:
        matched = self._match(sequence)
        missing = self.pool.blocks_for(len(sequence.tokens)) - len(matched)
        if not self.pool.can_allocate(missing, keeping=matched):
            return False
        self.pool.hold(matched)
        sequence.table = matched + self.pool.allocate(missing)
        sequence.num_computed = len(matched) * self.pool.block_size
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed
            self.num_queried_tokens += len(sequence.tokens)
            self.num_hit_tokens += sequence.num_computed
        sequence.move(SequenceState.RUNNING)
        del self._waiting[0]
        insort(self._running, sequence, key=_order)
        return True

    def _match(self, sequence: Sequence) -> list[int]:
        """The cached prefix. The last token is always computed: sampling needs its hidden state."""
        num_blocks = (len(sequence.tokens) - 1) // self.pool.block_size
        hashes = sequence.hashes(num_blocks, self.pool.block_size)
        return self.pool.match(hashes, sequence.tokens, sequence.request.salt)

    def _preempt(self, sequence: Sequence) -> None:
        _remove(self._running, sequence)
        sequence.move(SequenceState.WAITING)
        self._give_up_blocks(sequence)
        self._enqueue(sequence)
        self.num_preemptions += 1

    def _enqueue(self, sequence: Sequence) -> None:
        num_cached_tokens = len(self._match(sequence)) * self.pool.block_size
        sequence.num_uncached_tokens = len(sequence.tokens) - num_cached_tokens
        insort(self._waiting, sequence, key=_order)

    def _give_up_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.table)
        sequence.table = []
        sequence.num_computed = 0

    def __repr__(self) -> str:
        return f"<Scheduler {self.num_running} running {self.num_waiting} waiting {self.pool!r}>"


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _remove(sequences: list[Sequence], sequence: Sequence) -> None:
    del sequences[bisect_left(sequences, sequence.order, key=_order)]


def _prefill_chunk(sequence: Sequence, budget: int) -> Chunk:
    return Chunk(sequence, sequence.num_computed, min(budget, sequence.num_uncomputed))
