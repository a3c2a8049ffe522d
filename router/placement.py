"""One demand's place: candidates, decision and lease in one synchronous step. The only caller of `reserve`, so every
transport and every retry counts alike. Knows the rooms as callables and ports; nothing of waiting or of sockets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from router.choice import Explanation, View
from router.core import Decision, Demand, Lease, Pool, Replica
from router.ports import Clock, Policy, PrefixIndex
from router.routing.outputs import OutputLengths


@dataclass(eq=False, slots=True)
class Placement:
    """`ports.Placer` over the registry, the prefix index and a policy.

    `available(pool, now)`: the replicas that may be given work now. `any_ready(pool, tried)`: is there a ready one
    outside `tried`, full or not? `reserve(demand, decision)`: the lease, counted at once. `on_device(blocks, matches)`:
    of what each replica holds, the part that need not be fetched from host memory.
    """

    available: Callable[[Pool, float], Sequence[Replica]]
    any_ready: Callable[[Pool, frozenset[str]], bool]
    reserve: Callable[[Demand, Decision], Lease]
    index: PrefixIndex
    policy: Policy
    clock: Clock
    outputs: OutputLengths = field(default_factory=OutputLengths)
    on_device: Callable[[Sequence[int], Mapping[str, int]], Mapping[str, int]] | None = None

    def place(self, demand: Demand) -> Lease | None:
        view = self._view(demand)
        decision = self.policy.decide(demand, view) if view is not None else None
        if decision is None:
            return None
        # The index first: should it fail, nothing has been counted yet.
        self.index.insert(decision.replica.id, demand.prompt.block_hashes)
        lease = self.reserve(demand, decision)
        self.policy.placed(lease)
        lease.when_released(self.outputs.learn)
        return lease

    def explain(self, demand: Demand) -> Explanation:
        """What would be decided now. Nothing is counted, and nothing remembered."""
        view = self._view(demand)
        expected, about = self.outputs.expect(demand), self.policy.about()
        if view is None:
            return Explanation(demand, expected, (), None, about)
        weighed, decision = self.policy.explain(demand, view), self.policy.decide(demand, view)
        return Explanation(demand, expected, weighed, decision, about)

    def has_ready(self, demand: Demand) -> bool:
        return self.any_ready(demand.pool, demand.tried)

    def _view(self, demand: Demand) -> View | None:
        """None where there is no replica."""
        now = self.clock()
        replicas = self.available(demand.pool, now)
        if not replicas:
            return None
        matches = self.index.match(demand.prompt.block_hashes)
        device = matches if self.on_device is None else self.on_device(demand.prompt.block_hashes, matches)
        return View(now, replicas, matches, device, self.index.num_blocks, self.outputs.expect(demand))
