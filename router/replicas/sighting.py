"""What one process found out about a replica, as it is told to others on this host. Knows members; knows no sockets.

A sighting is the whole of what is known, not a change: whoever missed some is right again with the next.
"""

import msgspec

from router.core import Load, ReplicaState
from router.replicas.adapters import Slots
from router.replicas.identify import Identity
from router.replicas.member import Member
from router.spec import ReplicaSpec


class Sighting(msgspec.Struct, frozen=True):
    """`column` is its place on the board. `is_settled`: probes have said whether it is there; until then `state` tells
    nothing. `lost_at` is when it was last lost, and `cooling_until` when it may be asked again, on the clock that all
    processes of a host share."""

    spec: ReplicaSpec
    column: int | None
    state: ReplicaState
    is_settled: bool
    lost_at: float
    cooling_until: float
    identity: Identity | None = None
    load: Load | None = None
    foreign_requests: int = 0
    foreign_tokens: int = 0
    slots: Slots | None = None
    round_trip_s: float | None = None

    @property
    def id(self) -> str:
        return self.spec.id


def sight(member: Member, column: int | None) -> Sighting:
    replica = member.replica
    return Sighting(
        spec=replica.spec,
        column=column,
        state=replica.state,
        is_settled=replica.state is not ReplicaState.STARTING or member.health.is_lost,
        lost_at=member.lost_at,
        cooling_until=member.breaker.cooling_until,
        identity=member.identity,
        load=replica.load,
        foreign_requests=replica.foreign_requests,
        foreign_tokens=replica.foreign_tokens,
        slots=member.slots,
        round_trip_s=member.distance.round_trip_s,
    )
