"""Whose place a request of the highest band may take: a lease of a low band that has not begun to answer. Knows leases;
knows no line and no relay."""

from collections import deque
from dataclasses import dataclass, field

from router.admission.waiters import standing_of
from router.core import Band, Demand, Lease

# Who may take, and from whom.
TAKES = Band.HIGH
GIVES = (Band.LOW, Band.BULK)
# A request gives its place up at most so often: it is answered all the same.
MOST_DISPLACED = 1
_SPARE_LEASES = 64


@dataclass(eq=False, slots=True)
class Displaceable:
    """Leases of low bands in one pool, newest last. Those that began or ended are dropped when they are met."""

    _leases: deque[Lease] = field(default_factory=deque)
    _swept_to: int = 0

    def add(self, lease: Lease) -> None:
        if standing_of(lease.demand).band not in GIVES or lease.demand.num_displaced >= MOST_DISPLACED:
            return
        self._leases.append(lease)
        if len(self._leases) > 2 * self._swept_to + _SPARE_LEASES:
            self._leases = deque(each for each in self._leases if _may_go(each))
            self._swept_to = len(self._leases)

    def displace_for(self, demand: Demand) -> bool:
        """Have one give way whose replica can serve this demand: the newest of the lowest band. False: none can."""
        if standing_of(demand).band is not TAKES:
            return False
        candidates = [lease for lease in self._leases if _may_go(lease) and _fits(demand, lease)]
        if not candidates:
            return False
        chosen = max(reversed(candidates), key=lambda lease: standing_of(lease.demand).band)
        self._leases.remove(chosen)
        give_way = chosen.on_displaced
        assert give_way is not None  # else it may not go
        give_way()
        return True

    def __repr__(self) -> str:
        return f"<Displaceable {sum(map(_may_go, self._leases))} leases>"


def _may_go(lease: Lease) -> bool:
    return lease.outcome is None and not lease.has_started and lease.on_displaced is not None


def _fits(demand: Demand, lease: Lease) -> bool:
    replica = lease.replica
    return replica.id not in demand.tried and (demand.adapter is None or demand.adapter in replica.adapters)
