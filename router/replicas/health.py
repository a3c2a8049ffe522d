"""Life of a replica. Knows probes and the states they lead to; knows nothing of requests, models or load."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import aiohttp

from router.core import Replica, ReplicaState
from router.errors import BadAnswer, UpstreamError
from router.replicas.fetch import Answer, ConnectRefused, fetch
from router.spec import ReplicaSpec


class Event(Enum):
    FOUND = "a probe was good"
    SLEPT = "it is well, and asleep"
    LOST = "nobody listens, or probes failed repeatedly"
    DRAIN = "it shall get no new requests"
    UNDRAIN = "it may serve again"


# What is absent changes nothing: a replica that was never seen stays STARTING, a draining one waits for UNDRAIN.
TRANSITIONS: Mapping[tuple[ReplicaState, Event], ReplicaState] = {
    (ReplicaState.STARTING, Event.FOUND): ReplicaState.READY,
    (ReplicaState.READY, Event.LOST): ReplicaState.FAILED,
    (ReplicaState.FAILED, Event.FOUND): ReplicaState.READY,
    (ReplicaState.STARTING, Event.SLEPT): ReplicaState.ASLEEP,
    (ReplicaState.READY, Event.SLEPT): ReplicaState.ASLEEP,
    (ReplicaState.FAILED, Event.SLEPT): ReplicaState.ASLEEP,
    (ReplicaState.ASLEEP, Event.FOUND): ReplicaState.READY,
    (ReplicaState.ASLEEP, Event.LOST): ReplicaState.FAILED,
    (ReplicaState.ASLEEP, Event.DRAIN): ReplicaState.DRAINING,
    (ReplicaState.STARTING, Event.DRAIN): ReplicaState.DRAINING,
    (ReplicaState.READY, Event.DRAIN): ReplicaState.DRAINING,
    (ReplicaState.FAILED, Event.DRAIN): ReplicaState.DRAINING,
    (ReplicaState.DRAINING, Event.UNDRAIN): ReplicaState.STARTING,
}

STRIKES_TO_LOSE = 2
HAS_NO_SUCH_ROUTE = (404, 405)


@dataclass(eq=False, slots=True)
class Health:
    """Writes `replica.state`. A refused connection is two strikes, any other bad probe one; two in a row lose it."""

    replica: Replica
    num_strikes: int = 0

    @property
    def is_lost(self) -> bool:
        return self.num_strikes >= STRIKES_TO_LOSE

    def pass_probe(self, *, is_asleep: bool = False) -> bool:
        """A probe was good. True when that changed the state."""
        self.num_strikes = 0
        return self.follow(Event.SLEPT if is_asleep else Event.FOUND)

    def fail_probe(self, error: UpstreamError) -> bool:
        """A probe was not good. True when the replica is lost by this one, also where its state shows DRAINING."""
        was_lost = self.is_lost
        self.num_strikes += STRIKES_TO_LOSE if isinstance(error, ConnectRefused) else 1
        if was_lost or not self.is_lost:
            return False
        self.follow(Event.LOST)
        return True

    def mirror(self, state: ReplicaState) -> bool:
        """Another process, which probes it, has found this. True when that changed the state."""
        before, self.replica.state = self.replica.state, state
        return before is not state

    def follow(self, event: Event) -> bool:
        """True when the event changed the state."""
        before = self.replica.state
        self.replica.state = TRANSITIONS.get((before, event), before)
        return self.replica.state is not before

    def __repr__(self) -> str:
        return f"<Health {self.replica.id} {self.replica.state.name} {self.num_strikes} strikes>"


async def probe(session: aiohttp.ClientSession, spec: ReplicaSpec, timeout_s: float) -> None:
    """Ask a replica whether it is well. Raises an UpstreamError when it is not.

    A server without /health (404, 405) is well when it lists its models.
    """
    path = "/health"
    answer = await fetch(session, spec, path, timeout_s)
    if answer.status in HAS_NO_SUCH_ROUTE:
        path = "/v1/models"
        answer = await fetch(session, spec, path, timeout_s)
    _demand_success(spec, path, answer)


def _demand_success(spec: ReplicaSpec, path: str, answer: Answer) -> None:
    if not 200 <= answer.status < 300:
        raise BadAnswer(f"{spec.id}{path} answered with status {answer.status}")
