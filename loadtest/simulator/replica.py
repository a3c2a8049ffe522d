"""One simulated replica: the engine's own core, stepped on the virtual clock by how long a real step would take.

Knows the engine's core and the step model. Must not know the router, traces or measurements.

Steps that only compute everybody's next token are taken as one stretch, up to the step that needs a new block, so that
what the cache holds is right at any moment. Whoever comes cuts the stretch at the step under way. The result is that of
single steps, to the bit.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import NamedTuple

from engine.batch import Batch
from engine.core import EngineCore
from engine.prefixes import Change, Medium, Prefix, Removed
from engine.sequence import Request
from engine.sequence import Sequence as Running
from loadtest.simulator.adapters import AdapterCosts
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.profile import Overheads, Profile
from loadtest.simulator.timing import batch_s
from pointsman.blockhash import block_hashes

Fetch = Callable[[Callable[[], None]], None]
"""Gets KV from elsewhere, then calls what it is given."""


class Figures(NamedTuple):
    """What a replica tells of itself, as its metrics page would."""

    running: int
    waiting: int
    kv_used_ratio: float
    queued_tokens: int
    computed_tokens: int


@dataclass(frozen=True, slots=True)
class Place:
    """Blocks held for KV that is on its way: the first `num_known` were here before, `num_new` are to come."""

    table: list[int]
    num_known: int
    num_new: int


@dataclass(frozen=True, slots=True)
class Listener:
    """Told what a client would see: the first token, with the cached tokens of the prompt, and the end."""

    on_first_token: Callable[[int], None]
    on_end: Callable[[], None]


@dataclass(eq=False, slots=True)
class SimReplica:
    """`on_changes` is told what its cache gained and lost, as it happens. `busy_s` is the time spent in steps so far;
    `can_stretch` is False to take every step by itself. Where `num_turns` is the same, so are the `figures`."""

    id: str
    loop: VirtualLoop
    core: EngineCore
    profile: Profile
    overheads: Overheads
    on_changes: Callable[[str, list[Change]], None]
    adapter_costs: AdapterCosts | None = None
    can_stretch: bool = True
    busy_s: float = 0.0
    num_steps: int = 0
    num_turns: int = 0
    num_evicted: int = 0
    num_adapter_loads: int = 0
    _listeners: dict[str, Listener] = field(default_factory=dict)
    _batch: Batch | None = None
    _steady_ends_s: list[float] = field(default_factory=list)
    _begun_s: float = 0.0

    def submit(self, request: Request, listener: Listener, fetch: Fetch | None = None) -> None:
        """Send it a request; it reaches the queue once the API server is done with it, and `fetch` has called what it
        is given."""
        self._listeners[request.id] = listener
        enter = partial(self._enter, request)
        self.loop.at(self.loop.now + self.overheads.request_s, *((enter,) if fetch is None else (fetch, enter)))

    def offer(self, request: Request) -> list[int]:
        """Hold what of its prompt is in the cache, for another to fetch; to be let go of."""
        blocks = [prefix.block for prefix in self._cached(request) if prefix.block is not None]
        self._touch()
        self.core.scheduler.pool.hold(blocks)
        return blocks

    def let_go(self, blocks: list[int]) -> None:
        self._touch()
        self.core.scheduler.pool.release(blocks)
        self._resume()

    def receive(self, request: Request, num_offered: int) -> Place | None:
        """Hold blocks for KV of another; None where nothing is to come, or there is no room."""
        pool, known = self.core.scheduler.pool, self._cached(request)
        if len(known) >= num_offered or pool.shortage(known, num_offered):
            return None
        self._touch()
        table = pool.acquire(known, num_offered)
        self._tell_changes()
        return Place(table, len(known), num_offered - len(known))

    def received(self, request: Request, place: Place) -> None:
        """It came: whoever begins alike finds it."""
        self._touch()
        scheduler = self.core.scheduler
        pool, scope = scheduler.pool, scheduler.scope_of(request)
        hashes = block_hashes(request.prompt, pool.block_size, adapter=scope.adapter, salt=scope.salt)
        for index in range(place.num_known, len(place.table)):
            pool.publish(place.table, index, hashes[index], request.prompt, scope)
        pool.release(place.table)
        self._tell_changes()
        self._resume()

    def figures(self) -> Figures:
        scheduler = self.core.scheduler
        pool = scheduler.pool
        return Figures(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_used_ratio=pool.num_used / pool.num_blocks,
            queued_tokens=scheduler.num_queued_prefill_tokens,
            computed_tokens=self.core.stats.num_prompt_tokens - scheduler.num_hit_tokens,
        )

    def _cached(self, request: Request) -> list[Prefix]:
        """The last token is always computed: a block that ends with it is of no use."""
        scheduler = self.core.scheduler
        pool, scope, prompt = scheduler.pool, scheduler.scope_of(request), request.prompt[:-1]
        return pool.match(block_hashes(prompt, pool.block_size, adapter=scope.adapter, salt=scope.salt), prompt, scope)

    def _touch(self) -> None:
        """What its cache holds changes by other means than steps."""
        if self._steady_ends_s:
            self._cut()
        self.num_turns += 1

    def _enter(self, request: Request) -> None:
        self._touch()
        self.core.add(request)
        self._resume()

    def _resume(self) -> None:
        """Who waits may have room now."""
        if self._batch is None and not self._steady_ends_s and self.core.has_work:
            self._begin()

    def _begin(self) -> None:
        """Start the next step, or stretch of steps."""
        self._begun_s = self.loop.now
        num_steps = self._num_alike() if self.can_stretch else 0
        if num_steps > 1:
            self._stretch(num_steps)
        else:
            self._step()

    def _step(self, ends_s: float | None = None) -> None:
        """One step, which ends when the profile says, or at a time that it said before."""
        batch = self.core.plan()
        self.num_turns += 1
        self._tell_changes()
        if not batch.chunks:
            return
        self._batch = batch
        self.loop.at(self.loop.now + self._step_s(batch) if ends_s is None else ends_s, self._end_step, batch)

    def _end_step(self, batch: Batch) -> None:
        self._batch = None
        self.num_turns += 1
        self._count(1)
        tokens = [chunk.sequence.request.sampling.seed if chunk.samples else None for chunk in batch.chunks]
        for output in self.core.commit(batch, tokens, self.loop.now):
            if output.num_output_tokens == 1:
                self._tell_first(output.request_id, output.num_cached_tokens)
            if output.finish_reason is not None:
                self._tell_end(output.request_id, output.num_output_tokens)
        self._tell_changes()
        self._begin()

    def _stretch(self, num_steps: int) -> None:
        running = self.core.scheduler.running
        num_decodes, context = len(running), sum(sequence.num_computed for sequence in running)
        factor = self._adapter_factor({sequence.request.adapter for sequence in running})
        steps_s = self.profile.decode_steps_s(num_decodes, context, num_steps)
        ends = [self.loop.now + steps_s[0] * factor]
        for step_s in steps_s[1:]:
            ends.append(ends[-1] + step_s * factor)
        self._steady_ends_s = ends
        self.loop.at(ends[-1], self._end_stretch, ends)

    def _end_stretch(self, ends_s: list[float]) -> None:
        if ends_s is self._steady_ends_s:  # else it was cut
            self._advance(ends_s)
            self._begin()

    def _cut(self) -> None:
        """Somebody comes: the steps that ended are taken, and the one under way will be the last."""
        ends_s = self._steady_ends_s
        num_ended = bisect_right(ends_s, self.loop.now)
        if num_ended == len(ends_s):
            num_ended -= 1  # its end is due at this very moment, and comes next
        if num_ended:
            self._advance(ends_s[:num_ended])
        self._steady_ends_s = []
        self._step(ends_s[num_ended])

    def _advance(self, ends_s: list[float]) -> None:
        self._steady_ends_s = []
        self._count(len(ends_s), ends_s[-1])
        self.core.advance(_answer, ends_s)
        self._tell_changes()

    def _count(self, num_steps: int, until_s: float | None = None) -> None:
        ended_s = self.loop.now if until_s is None else until_s
        self.busy_s += ended_s - self._begun_s
        self._begun_s = ended_s
        self.num_steps += num_steps

    def _num_alike(self) -> int:
        """Steps from now that differ in nothing but their tokens, and need no block."""
        num_steps = self.core.num_steady_steps()
        if num_steps < 2:
            return 0
        block_size = self.core.scheduler.pool.block_size
        running = self.core.scheduler.running
        return min(num_steps, *(len(each.table) * block_size - each.num_computed for each in running))

    def _step_s(self, batch: Batch) -> float:
        step_s = batch_s(self.profile, batch, self.core.scheduler.pool.block_size)
        return self._load_s(batch) + step_s * self._adapter_factor({c.sequence.request.adapter for c in batch.chunks})

    def _adapter_factor(self, names: set[str | None]) -> float:
        if self.adapter_costs is None:
            return 1.0
        return self.adapter_costs.step_factor(len(names - {None}))

    def _load_s(self, batch: Batch) -> float:
        """Adapters are put into their slots before the step that needs them."""
        if self.adapter_costs is None or not batch.placements:
            return 0.0
        self.num_adapter_loads += len(batch.placements)
        return sum(self.adapter_costs.load_s(placement.adapter.name) for placement in batch.placements)

    def _tell_changes(self) -> None:
        changes = self.core.take_changes()
        if changes:
            self.num_evicted += sum(
                len(change.hashes) for change in changes if isinstance(change, Removed) and change.medium is Medium.GPU
            )
            self.on_changes(self.id, changes)

    def _tell_first(self, request_id: str, num_cached_tokens: int) -> None:
        listener = self._listeners[request_id]
        self.loop.at(self.loop.now + self.overheads.token_s, listener.on_first_token, num_cached_tokens)

    def _tell_end(self, request_id: str, num_output_tokens: int) -> None:
        listener = self._listeners.pop(request_id)
        late_s = self.overheads.token_s * num_output_tokens + self.overheads.finish_s
        self.loop.at(self.loop.now + late_s, listener.on_end)

    def __repr__(self) -> str:
        return f"<SimReplica {self.id} {self.core.scheduler!r}>"


def _answer(sequence: Running, num_tokens: int) -> Sequence[int]:
    """A token that no other request has, again and again."""
    return list(repeat(sequence.request.sampling.seed, num_tokens))
