"""One demand's place: candidates, decision and lease in one synchronous step. The only caller of `reserve`, so every
transport and every retry counts alike. Knows the rooms as callables and ports; nothing of waiting or of sockets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.core import Candidate, Decision, Demand, Lease, Pool, Prompt, Replica
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
        matches = self.index.match(demand.prompt.block_hashes) if replicas else {}
        return [
            Candidate(
                replica=replica,
                matched_tokens=_matched_tokens(demand.prompt, matches.get(replica.id, 0)),
                cached_blocks=self.index.num_blocks(replica.id),
            )
            for replica in replicas
        ]


def _matched_tokens(prompt: Prompt, num_blocks: int) -> int:
    """An engine computes at least the last token, whatever it has cached."""
    return max(0, min(num_blocks * prompt.block_size, prompt.num_tokens - 1))
