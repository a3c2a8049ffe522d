"""How what replicas know of themselves reaches the routers: at once, late, or not at all. Knows replicas' changes and
figures, indexes and stations; knows no policy and no workload."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from engine.prefixes import Change as EngineChange
from engine.prefixes import Cleared, Medium, Removed, Stored
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.replica import SimReplica
from loadtest.simulator.station import SWEEP_S, Station
from router.core import Load
from router.prefix.changes import Change, Emptied, gone, held
from router.prefix.follower import FeedState, FeedStatus


class Knowledge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`metrics_interval_ms`: a report is up to so old; 0: always that of this moment. `kv_events` false: routers go by
    their own dispatches, the replicas' capacity and answers. `routers` that share the fleet, each with its own view.
    `fair_shares` false: they do not know whose requests wait, and serve them in one order."""

    metrics_interval_ms: float = 0.0
    kv_events: bool = True
    kv_event_delay_ms: float = 0.0
    routers: int = 1
    fair_shares: bool = True


@dataclass(eq=False, slots=True)
class Wires:
    """Between the replicas and the stations of one fleet."""

    loop: VirtualLoop
    knowledge: Knowledge
    replicas: Sequence[SimReplica]
    stations: Sequence[Station]

    def open(self) -> None:
        """Begin to carry."""
        for station in self.stations:
            if self.knowledge.kv_events:
                for replica in self.replicas:
                    station.caches.tell_status(replica.id, FeedStatus(FeedState.SYNCED))
            if self.knowledge.metrics_interval_ms == 0:
                station.before_look = partial(self._report_all, station, {})
            self.loop.at(SWEEP_S, self._sweep, station)
        if self.knowledge.metrics_interval_ms > 0:
            interval_s = self.knowledge.metrics_interval_ms / 1e3
            for number, replica in enumerate(self.replicas):
                self.loop.at(interval_s * number / len(self.replicas), self._poll, replica, interval_s)

    def on_changes(self, replica_id: str, changes: Sequence[EngineChange]) -> None:
        """A replica's cache changed."""
        if not self.knowledge.kv_events:
            return
        told = [_told(change) for change in changes]
        if self.knowledge.kv_event_delay_ms == 0:
            self._tell(replica_id, told)
        else:
            self.loop.at(self.loop.now + self.knowledge.kv_event_delay_ms / 1e3, self._tell, replica_id, told)

    def _tell(self, replica_id: str, told: Sequence[Change]) -> None:
        for station in self.stations:
            station.caches.tell(replica_id, told)

    def _sweep(self, station: Station) -> None:
        station.sweep()
        self.loop.at(self.loop.now + SWEEP_S, self._sweep, station)

    def _report_all(self, station: Station, seen: dict[str, int]) -> None:
        """All that is new to this station; in a large fleet most has not changed since the last look."""
        for replica in self.replicas:
            if seen.get(replica.id) != replica.num_turns:
                seen[replica.id] = replica.num_turns
                station.report(replica.id, self._load(replica))

    def _poll(self, replica: SimReplica, interval_s: float) -> None:
        load = self._load(replica)
        for station in self.stations:
            station.hear(replica.id, load)
        self.loop.at(self.loop.now + interval_s, self._poll, replica, interval_s)

    def _load(self, replica: SimReplica) -> Load:
        figures = replica.figures()
        return Load(
            at=self.loop.now,
            running=figures.running,
            waiting=figures.waiting,
            kv_used_ratio=figures.kv_used_ratio,
            queued_tokens=figures.queued_tokens,
            computed_tokens=figures.computed_tokens,
        )


def _told(change: EngineChange) -> Change:
    """As a feed makes it of the engine's events."""
    match change:
        case Stored():
            parent = change.prefixes[0].parent
            blocks = [prefix.hash for prefix in change.prefixes]
            return held(None if parent is None else parent.hash, blocks, is_host=change.medium is Medium.CPU)
        case Removed():
            return gone(change.hashes, is_host=change.medium is Medium.CPU)
        case Cleared():
            return Emptied()
