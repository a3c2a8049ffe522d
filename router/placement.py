"""One demand's place: candidates, decision and lease in one synchronous step. The only caller of `reserve`, so every
transport and every retry counts alike. Knows the rooms as callables and ports; nothing of waiting or of sockets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.core import Candidate, Decision, Demand, Lease, Pool, Replica
from router.ports import Clock, Policy, PrefixIndex


@dataclass(eq=False, slots=True)
class Placement:
    """`ports.Placer` over the registry, the prefix index and a policy.

    `available(pool, now)`: the replicas that may be given work now. `any_ready(pool, tried)`: is there a ready one
    outside `tried`, full or not? `reserve(demand, decision)`: the lease, counted at once.
    """

    available: Callable[[Pool, float], Sequence[Replica]]
    any_ready: Callable[[Pool, frozenset[str]], bool]
    reserve: Callable[[Demand, Decision], Lease]
    index: PrefixIndex
    policy: Policy
    clock: Clock

    def place(self, demand: Demand) -> Lease | None:
        candidates = self._candidates(demand)
        decision = self.policy.decide(demand, candidates) if candidates else None
        if decision is None:
            return None
        # The index first: should it fail, nothing has been counted yet.
        self.index.insert(decision.replica.id, demand.prompt.block_hashes)
        return self.reserve(demand, decision)

    def has_ready(self, demand: Demand) -> bool:
        return self.any_ready(demand.pool, demand.tried)

    def _candidates(self, demand: Demand) -> list[Candidate]:
        replicas = self.available(demand.pool, self.clock())
        if not replicas:
            return []
        prompt, num_blocks = demand.prompt, self.index.num_blocks
        # An engine computes at least the last token, whatever it has cached.
        most_tokens, matches = max(0, prompt.num_tokens - 1), self.index.match(prompt.block_hashes)
        return [
            Candidate(
                replica,
                min(matches[replica.id] * prompt.block_size, most_tokens) if replica.id in matches else 0,
                num_blocks(replica.id),
            )
            for replica in replicas
        ]
