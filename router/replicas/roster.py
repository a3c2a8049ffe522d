"""Who of a pool can take a request. Knows members, their states and breakers; knows no names, no I/O.

Asked for each request, so the answer is kept per pool until somebody's state, breaker or cooling changes: nothing is
rescanned and nothing allocated in between.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from router.core import Pool, Replica, ReplicaState
from router.replicas.member import Member


@dataclass(frozen=True, slots=True)
class _View:
    ready: tuple[Replica, ...]
    available: tuple[Replica, ...]
    stale_at: float


@dataclass(eq=False, slots=True)
class Roster:
    _members: dict[Pool, list[Member]] = field(default_factory=dict)
    _views: dict[Pool, _View] = field(default_factory=dict)

    def rebuild(self, members: Iterable[Member]) -> None:
        """Membership of pools changed."""
        self._members = {}
        self._views = {}
        for member in members:
            if member.replica.pool is not None:
                self._members.setdefault(member.replica.pool, []).append(member)

    def update(self, member: Member) -> None:
        """The state or the breaker of a member changed."""
        if member.replica.pool is not None:
            self._views.pop(member.replica.pool, None)

    def available(self, pool: Pool, now: float) -> Sequence[Replica]:
        """Ready replicas whose breaker admits a request now. Must not be kept: it is right for this moment."""
        return self._view(pool, now).available

    def ready(self, pool: Pool, now: float) -> Sequence[Replica]:
        """Ready replicas, those included that are full, cooling or behind an open breaker."""
        return self._view(pool, now).ready

    def _view(self, pool: Pool, now: float) -> _View:
        view = self._views.get(pool)
        if view is None or now >= view.stale_at:
            view = self._views[pool] = _look(self._members.get(pool, ()), now)
        return view


def _look(members: Iterable[Member], now: float) -> _View:
    ready = [member for member in members if member.replica.state is ReplicaState.READY]
    return _View(
        ready=tuple(member.replica for member in ready),
        available=tuple(member.replica for member in ready if member.breaker.admits(now)),
        stale_at=min((member.breaker.admits_later_at(now) for member in ready), default=float("inf")),
    )
