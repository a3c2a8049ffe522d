"""Chooses what the next step computes: continuous batching under a token budget.

Knows sequences, the block pool and adapters' slots. Must not know tensors, text or time.

A sequence is admitted when the blocks for all its present tokens are there, so a prefill never stops half way for
want of blocks; only a decode that enters a new block can find none, and then the last sequence in order gives up
its blocks and is computed again later. The first in order can always go on, so there is no deadlock. A waiting
sequence of an earlier priority may make running ones of a later give way.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import count

from engine.adapters import Adapter, AdapterSlots
from engine.batch import Batch, Chunk
from engine.blocks import BlockPool
from engine.drafts import Drafting
from engine.prefixes import Prefix, Scope
from engine.sequence import FinishReason, Request, Sequence, SequenceState, scope_of

# How many waiting sequences are looked at for one that needs no adapter's slot.
_LOOK_AHEAD = 64


@dataclass(eq=False, slots=True)
class Scheduler:
    """`max_num_batched_tokens` must be at least `max_num_seqs`, so that each running sequence can decode."""

    pool: BlockPool
    max_num_seqs: int
    max_num_batched_tokens: int
    adapters: AdapterSlots = field(default_factory=AdapterSlots)
    drafting: Drafting | None = None
    num_preemptions: int = field(default=0, init=False)
    num_queried_tokens: int = field(default=0, init=False)
    num_hit_tokens: int = field(default=0, init=False)
    _waiting: list[Sequence] = field(default_factory=list, init=False)
    _running: list[Sequence] = field(default_factory=list, init=False)
    _sequences: dict[str, Sequence] = field(default_factory=dict, init=False)
    _arrivals: "count[int]" = field(default_factory=count, init=False)

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs})"
            )

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> List[Sequence]:
        """In order. Not to be changed, nor kept over a step; another thread may copy it."""
        return self._waiting

    @property
    def running(self) -> List[Sequence]:
        """In order. Not to be changed, nor kept over a step; another thread may copy it."""
        return self._running

    @property
    def num_queued_prefill_tokens(self) -> int:
        """Uncached tokens not yet computed, of waiting sequences and of running ones still in prefill."""
        waiting = sum(sequence.num_uncached_tokens for sequence in list(self._waiting))
        running = (sequence.num_uncomputed for sequence in list(self._running))
        return waiting + sum(tokens for tokens in running if tokens > 1)

    def check(self, request: Request) -> Adapter | None:
        """The adapter that it names. Raises ValueError for a request that this pool could never finish, UnknownAdapter
        where the adapter is not loaded."""
        num_tokens = len(request.prompt) + request.sampling.max_tokens
        if self.pool.blocks_for(num_tokens) > self.pool.num_blocks:
            room = self.pool.num_blocks * self.pool.block_size
            raise ValueError(f"{num_tokens} tokens asked for, the KV cache holds {room}")
        return None if request.adapter is None else self.adapters.find(request.adapter)

    def add(self, request: Request, adapter: Adapter | None = None) -> Sequence:
        """Queues a request; `adapter` is what `check` gave for it, if it was checked before: it may be unloaded by now.
        Raises ValueError as `check` does, or if one of that id is queued."""
        if adapter is None:
            adapter = self.check(request)
        if request.id in self._sequences:
            raise ValueError(f"a request {request.id} is open already")
        sequence = Sequence(request, order=(request.priority, next(self._arrivals)), adapter=adapter)
        self._sequences[request.id] = sequence
        self._enqueue(sequence)
        return sequence

    def scope_of(self, request: Request) -> Scope:
        """Whom it shares KV with. Raises UnknownAdapter."""
        adapter = None if request.adapter is None else self.adapters.find(request.adapter)
        return scope_of(request.salt, adapter)

    def find(self, request_id: str) -> Sequence | None:
        return self._sequences.get(request_id)

    def schedule(self) -> Batch:
        """What to compute next; empty only when nothing is queued."""
        if self._waiting and self._running:
            self._make_way()
        num_preemptions = self.num_preemptions
        chunks = self._decodes()
        budget = self.max_num_batched_tokens - len(chunks)
        if len(chunks) < len(self._running):
            budget = self._go_on(chunks, budget)
        # Blocks that a preemption just freed are for the decodes: admitting now would thrash.
        if self._waiting and budget and self.num_preemptions == num_preemptions:
            budget = self._take_in(chunks, budget)
        if self.drafting is not None:
            chunks = self.drafting.extend(chunks, budget, self.pool)
        return Batch(tuple(chunks), self.pool.take_copies(), self.adapters.take_placements())

    def computed(self, chunk: Chunk) -> None:
        """The chunk's KV is in its blocks: count it, and share the blocks that became full."""
        sequence, size = chunk.sequence, self.pool.block_size
        end = chunk.start + chunk.num_tokens
        first, full = chunk.start // size, end // size
        if first < full:
            self._share(sequence, first, full)
        sequence.num_computed = end

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Takes a queued sequence out, whatever it was doing, and frees its blocks."""
        del self._sequences[sequence.request.id]
        if sequence.state is SequenceState.WAITING:
            _remove(self._waiting, sequence)
        else:
            self._stop_running(sequence)
        sequence.finish(reason)

    def forget_kv(self) -> None:
        """All KV is lost: what was running will be computed again, and nothing is cached any more."""
        while self._running:
            self._preempt(self._running[-1])
        self.adapters.vacate_all()
        self.pool.clear()
        for sequence in self._waiting:
            sequence.num_uncached_tokens = len(sequence.tokens)

    def num_steady_steps(self) -> int:
        """For how many steps from now each would compute the newest token of every running sequence, and nothing
        else, if nobody came, went or stopped early. No sequence reaches its limit in them."""
        running = self._running
        if self.drafting is not None:
            return 0
        if any(sequence.num_uncomputed != 1 or sequence.last_token_s is None for sequence in running):
            return 0
        steps = min((s.request.sampling.max_tokens - s.num_output_tokens - 1 for s in running), default=0)
        if self._waiting and steps:
            if self._can_change():
                return 0
            if len(running) < self.max_num_seqs:
                # A block that becomes full may be one that the head shares, which makes room for it.
                steps = min(steps, *(self.pool.block_size - s.num_computed % self.pool.block_size for s in running))
        return self._most_steps_in_room(steps)

    def compute_steadily(self, num_steps: int) -> None:
        """So many steady steps at once: each running sequence has that many new tokens at its end already, and all
        but the last of them are computed. Blocks are taken and shared in the order of single steps."""
        size = self.pool.block_size
        crossings = []
        for place, sequence in enumerate(self._running):
            first = sequence.num_computed
            # Step `k` writes position `first + k`: into a new block at its begin, and one is full after its end.
            crossings += [(position - first, 0, place) for position in _multiples(first, first + num_steps - 1, size)]
            crossings += [(end - 1 - first, 1, place) for end in _multiples(first + 1, first + num_steps, size)]
        for step, is_full, place in sorted(crossings):
            sequence = self._running[place]
            position = sequence.num_computed + step
            if is_full:
                self._share(sequence, position // size, position // size + 1)
            elif len(sequence.table) * size <= position:
                sequence.table += self.pool.allocate(1)
        for sequence in self._running:
            sequence.num_computed += num_steps

    def _make_way(self) -> None:
        """A waiting sequence of an earlier priority takes the place of running ones of a later, if that helps."""
        head = self._waiting[0]
        if self._running[-1].request.priority <= head.request.priority or not self._has_slot(head):
            return
        later = [sequence for sequence in self._running if sequence.request.priority > head.request.priority]
        if self._shortage(head) > sum(len(sequence.table) for sequence in later):
            return
        # Admitted at once: else decodes of the later ones would take the blocks.
        while later and (len(self._running) >= self.max_num_seqs or not self._admit(head)):
            self._preempt(later.pop())
        if head.state is SequenceState.WAITING and len(self._running) < self.max_num_seqs:
            self._admit(head)

    def _decodes(self) -> list[Chunk]:
        """One token for each sequence that has only its newest token to compute, in order."""
        chunks = []
        size = self.pool.block_size
        for sequence in self._running.copy():
            num_tokens = len(sequence.tokens)
            if num_tokens - sequence.num_computed == 1 and (
                num_tokens <= len(sequence.table) * size or self._has_room(sequence)
            ):
                chunks.append(Chunk(sequence, num_tokens - 1, 1))
        return chunks

    def _has_room(self, sequence: Sequence) -> bool:
        """Makes room for one more token, at the cost of the last in order; False if that was this one."""
        while sequence.state is SequenceState.RUNNING:
            missing = self.pool.blocks_for(len(sequence.tokens)) - len(sequence.table)
            if self.pool.can_allocate(missing):
                sequence.table += self.pool.allocate(missing)
                return True
            self._preempt(self._running[-1])
        return False

    def _go_on(self, chunks: list[Chunk], budget: int) -> int:
        """Running prefills, in order; gives what is left of the budget."""
        for sequence in self._running:
            if budget and sequence.num_uncomputed > 1:
                chunks.append(_prefill_chunk(sequence, budget))
                budget -= chunks[-1].num_tokens
        return budget

    def _take_in(self, chunks: list[Chunk], budget: int) -> int:
        """The queue's head is admitted while it fits; gives what is left of the budget. Nobody overtakes it, unless all
        it lacks is an adapter's slot."""
        place = 0
        while budget and place < min(len(self._waiting), _LOOK_AHEAD) and len(self._running) < self.max_num_seqs:
            sequence = self._waiting[place]
            if not self._has_slot(sequence) and sequence.num_overtaken < self.max_num_seqs:
                place += 1
                continue
            if not self._has_slot(sequence) or not self._admit(sequence):
                break
            for overtaken in self._waiting[:place]:
                overtaken.num_overtaken += 1
            chunks.append(_prefill_chunk(sequence, budget))
            budget -= chunks[-1].num_tokens
        return budget

    def _has_slot(self, sequence: Sequence) -> bool:
        return sequence.adapter is None or self.adapters.can_take(sequence.adapter)

    def _admit(self, sequence: Sequence) -> bool:
        matched = self._match(sequence)
        num_blocks = self.pool.blocks_for(len(sequence.tokens))
        if self.pool.shortage(matched, num_blocks):
            return False
        _remove(self._waiting, sequence)
        sequence.table = self.pool.acquire(matched, num_blocks)
        sequence.num_computed = len(matched) * self.pool.block_size
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed
            self.num_queried_tokens += len(sequence.tokens)
            self.num_hit_tokens += sequence.num_computed
        if sequence.adapter is not None:
            self.adapters.take(sequence.adapter)
        sequence.move(SequenceState.RUNNING)
        insort(self._running, sequence, key=_order)
        return True

    def _shortage(self, sequence: Sequence) -> int:
        return self.pool.shortage(self._match(sequence), self.pool.blocks_for(len(sequence.tokens)))

    def _match(self, sequence: Sequence) -> list[Prefix]:
        """The cached prefix. The last token is always computed: sampling needs its hidden state; and so are all, where
        what is asked for is made of all."""
        if sequence.needs_all_states:
            return []
        num_blocks = (len(sequence.tokens) - 1) // self.pool.block_size
        hashes = sequence.hashes(num_blocks, self.pool.block_size)
        sequence.matched = self.pool.match(hashes, sequence.tokens, sequence.scope, sequence.matched)
        return sequence.matched

    def _share(self, sequence: Sequence, first: int, last: int) -> None:
        """The blocks `first` to before `last` of its table are full and computed."""
        if sequence.adapter is not None and sequence.adapter.is_gone:
            return
        hashes = sequence.hashes(last, self.pool.block_size)
        for index in range(first, last):
            self.pool.publish(sequence.table, index, hashes[index], sequence.tokens, sequence.scope)

    def _can_change(self) -> bool:
        """Whether the queue may change what runs, at the next step or as soon as a block is shared."""
        head = self._waiting[0]
        if self._running[-1].request.priority > head.request.priority or not self._has_slot(head):
            return True
        return len(self._running) < self.max_num_seqs and not self._shortage(head)

    def _most_steps_in_room(self, num_steps: int) -> int:
        """The most steps, up to `num_steps`, that nobody has to give up blocks for."""

        def fits(steps: int) -> bool:
            missing = (self.pool.blocks_for(s.num_computed + steps) - len(s.table) for s in self._running)
            return self.pool.can_allocate(sum(missing))

        if fits(num_steps):
            return num_steps
        return bisect_left(range(num_steps), True, key=lambda steps: not fits(steps)) - 1

    def _preempt(self, sequence: Sequence) -> None:
        self._stop_running(sequence)
        sequence.move(SequenceState.WAITING)
        self._enqueue(sequence)
        self.num_preemptions += 1

    def _enqueue(self, sequence: Sequence) -> None:
        num_cached_tokens = len(self._match(sequence)) * self.pool.block_size
        sequence.num_uncached_tokens = len(sequence.tokens) - num_cached_tokens
        insort(self._waiting, sequence, key=_order)

    def _stop_running(self, sequence: Sequence) -> None:
        _remove(self._running, sequence)
        self.pool.release(sequence.table)
        sequence.table = []
        sequence.num_computed = 0
        if sequence.adapter is not None:
            self.adapters.leave(sequence.adapter)

    def __repr__(self) -> str:
        return f"<Scheduler {self.num_running} running {self.num_waiting} waiting {self.pool!r}>"


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _remove(sequences: list[Sequence], sequence: Sequence) -> None:
    del sequences[bisect_left(sequences, sequence.order, key=_order)]


def _prefill_chunk(sequence: Sequence, budget: int) -> Chunk:
    return Chunk(sequence, sequence.num_computed, min(budget, sequence.num_uncomputed))


def _multiples(first: int, last: int, size: int) -> range:
    """Those of `size` from `first` to `last`."""
    return range(-(-first // size) * size, last + 1, size)
