"""One simulated replica: the engine's own core, stepped on the virtual clock by how long a real step would take.

Knows the engine's core and the step model. Must not know the router, traces or measurements.

Steps that only decode, with nobody waiting, are alike until a sequence ends or enters a new block: they are taken as
one stretch, which a new request cuts at the end of the step that it falls into. The result is that of single steps, to
the bit.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from engine.core import EngineCore
from engine.scheduler import Batch, Chunk
from engine.sequence import Request, Sequence
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.profile import Overheads, Profile


class Figures(NamedTuple):
    """What a replica tells of itself, as its metrics page would."""

    running: int
    waiting: int
    kv_used_ratio: float
    queued_tokens: int


@dataclass(frozen=True, slots=True)
class Listener:
    """Told what a client would see: the first token, with the cached tokens of the prompt, and the end."""

    on_first_token: Callable[[int], None]
    on_end: Callable[[], None]


@dataclass(eq=False, slots=True)
class SimReplica:
    """`busy_s` is the time spent in steps so far; `can_stretch` is False to take every step by itself."""

    id: str
    loop: VirtualLoop
    core: EngineCore
    profile: Profile
    overheads: Overheads
    can_stretch: bool = True
    busy_s: float = 0.0
    num_steps: int = 0
    _listeners: dict[str, Listener] = field(default_factory=dict)
    _batch: Batch | None = None
    _started_s: float = 0.0
    _step_ends_s: list[float] = field(default_factory=list)

    def submit(self, request: Request, listener: Listener) -> None:
        """Send it a request; it reaches the queue once the API server is done with it."""
        self._listeners[request.id] = listener
        self.loop.at(self.loop.now + self.overheads.request_s, self._enter, request)

    def figures(self) -> Figures:
        scheduler = self.core.scheduler
        pool = scheduler.pool
        return Figures(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_used_ratio=pool.num_used / pool.num_blocks,
            queued_tokens=scheduler.num_queued_prefill_tokens,
        )

    def _enter(self, request: Request) -> None:
        self.core.add(request)
        if self._batch is None:
            self._begin()
        else:
            self._cut()

    def _begin(self) -> None:
        """Start the next step, or stretch of steps."""
        batch = self.core.plan()
        if not batch.chunks:
            return
        self._batch = batch
        self._started_s = self.loop.now
        self._step_ends_s = self._plan_ends(batch)
        self.loop.at(self._step_ends_s[-1], self._end, batch, len(self._step_ends_s))

    def _cut(self) -> None:
        """Somebody came: the stretch ends with the step under way."""
        assert self._batch is not None
        num_steps = bisect_left(self._step_ends_s, self.loop.now) + 1
        if num_steps < len(self._step_ends_s):
            del self._step_ends_s[num_steps:]
            self.loop.at(self._step_ends_s[-1], self._end, self._batch, num_steps)

    def _plan_ends(self, batch: Batch) -> list[float]:
        """When each step of this batch ends: of one, or of as many as are alike."""
        num_steps = self._num_alike(batch) if self.can_stretch else 1
        prefills = [(chunk.num_tokens, chunk.start) for chunk in batch.chunks if chunk.num_tokens > 1]
        num_decodes = len(batch.chunks) - len(prefills)
        context = sum(chunk.start for chunk in batch.chunks if chunk.num_tokens == 1)
        ends, at_s = [], self.loop.now
        for _ in range(num_steps):
            at_s += self.profile.step_s(prefills, num_decodes, context)
            ends.append(at_s)
            context += num_decodes
        return ends

    def _num_alike(self, batch: Batch) -> int:
        if self.core.scheduler.num_waiting:
            return 1
        block_size = self.core.scheduler.pool.block_size
        most = [_num_alike_steps(chunk, block_size) for chunk in batch.chunks]
        return max(1, min(most))

    def _end(self, batch: Batch, num_steps: int) -> None:
        if batch is not self._batch or num_steps != len(self._step_ends_s):
            return  # it was cut
        self._batch = None
        self.busy_s += self.loop.now - self._started_s
        self.num_steps += num_steps
        if num_steps > 1:
            batch = self._forward(batch, num_steps - 1)
        tokens = [_own_token(chunk.sequence) if chunk.samples else None for chunk in batch.chunks]
        for output in self.core.commit(batch, tokens, self.loop.now):
            if output.num_output_tokens == 1:
                self._tell_first(output.request_id, output.num_cached_tokens)
            if output.finish_reason is not None:
                self._tell_end(output.request_id, output.num_output_tokens)
        self._begin()

    def _forward(self, batch: Batch, num_steps: int) -> Batch:
        """Make up for so many steps; returns the batch of the one after them."""
        scheduler, last_s = self.core.scheduler, self._step_ends_s[-2]
        chunks = []
        for chunk in batch.chunks:
            sequence = chunk.sequence
            sequence.tokens.extend(repeat(_own_token(sequence), num_steps))
            scheduler.computed(Chunk(sequence, chunk.start, num_steps))
            sequence.last_token_s = last_s
            chunks.append(Chunk(sequence, chunk.start + num_steps, 1))
        return Batch(tuple(chunks))

    def _tell_first(self, request_id: str, num_cached_tokens: int) -> None:
        listener = self._listeners[request_id]
        self.loop.at(self.loop.now + self.overheads.token_s, listener.on_first_token, num_cached_tokens)

    def _tell_end(self, request_id: str, num_output_tokens: int) -> None:
        listener = self._listeners.pop(request_id)
        late_s = self.overheads.token_s * num_output_tokens + self.overheads.finish_s
        self.loop.at(self.loop.now + late_s, listener.on_end)

    def __repr__(self) -> str:
        return f"<SimReplica {self.id} {self.core.scheduler!r}>"


def _num_alike_steps(chunk: Chunk, block_size: int) -> int:
    """Steps until this sequence ends or needs a block; 1 for a prefill, whose first token somebody waits for."""
    sequence = chunk.sequence
    if chunk.num_tokens > 1 or not sequence.num_output_tokens:
        return 1
    num_left = sequence.request.sampling.max_tokens - sequence.num_output_tokens
    num_in_blocks = len(sequence.table) * block_size - len(sequence.tokens) + 1
    return min(num_left, num_in_blocks)


def _own_token(sequence: Sequence) -> int:
    """What it answers, again and again: a token that no other request has."""
    return sequence.request.sampling.seed
