"""A filter of one's own: some replicas are one tenant's alone. A class, a dataclass; its fields are its parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.core import Candidate, Demand


@dataclass(frozen=True, slots=True)
class Dedicated:
    """Keeps for `tenant` the replicas named here, by their ids, and for all others the rest. Whom none are left for
    waits. Nobody knows who asks -> the rest."""

    tenant: str
    replicas: list[str]

    def keep(self, demand: Demand, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        is_theirs = demand.standing is not None and demand.standing.tenant == self.tenant
        return [each for each in candidates if (each.replica.id in self.replicas) is is_theirs]
