"""How what replicas know of themselves reaches the routers: at once, late, or not at all. Knows replicas' changes and
figures, indexes and stations; knows no policy and no workload."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from engine.blocks import BlockPool
from engine.prefixes import Change, Medium, Removed, Stored
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.replica import SimReplica
from loadtest.simulator.station import Station
from router.core import Load
from router.prefix.index import BlockIndex

# One replica's KV blocks, as packed for its index: (parent, blocks, is in host memory), or blocks that went.
Told = tuple[int | None, list[int], bool, bool]


class Knowledge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`metrics_interval_ms`: a report is up to so old; 0: always that of this moment. `kv_events` false: routers go by
    their own dispatches and the replicas' capacity. `routers` that share the fleet, each with its own view."""

    metrics_interval_ms: float = 0.0
    kv_events: bool = True
    kv_event_delay_ms: float = 0.0
    routers: int = 1


@dataclass(eq=False, slots=True)
class Wires:
    """Between the replicas and the stations of one fleet."""

    loop: VirtualLoop
    knowledge: Knowledge
    replicas: Sequence[SimReplica]
    stations: Sequence[Station]

    def open(self) -> None:
        """Begin to carry."""
        for replica in self.replicas:
            if not self.knowledge.kv_events:
                for station in self.stations:
                    station.index.limit(replica.id, capacity(replica.core.scheduler.pool))
        if self.knowledge.metrics_interval_ms == 0:
            for station in self.stations:
                station.before_look = partial(self._report_all, station)
            return
        interval_s = self.knowledge.metrics_interval_ms / 1e3
        for number, replica in enumerate(self.replicas):
            self.loop.at(interval_s * number / len(self.replicas), self._poll, replica, interval_s)

    def on_changes(self, replica_id: str, changes: Sequence[Change]) -> None:
        """A replica's cache changed."""
        if not self.knowledge.kv_events:
            return
        told = [_told(change) for change in changes if isinstance(change, Stored | Removed)]
        if self.knowledge.kv_event_delay_ms == 0:
            self._tell(replica_id, told)
        else:
            self.loop.at(self.loop.now + self.knowledge.kv_event_delay_ms / 1e3, self._tell, replica_id, told)

    def _tell(self, replica_id: str, told: Sequence[Told]) -> None:
        for station in self.stations:
            for parent, blocks, is_host, is_stored in told:
                if is_stored:
                    station.index.store(replica_id, parent, blocks, is_host=is_host)
                else:
                    station.index.drop(replica_id, blocks, is_host=is_host)

    def _report_all(self, station: Station) -> None:
        for replica in self.replicas:
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
        )


def open_index() -> BlockIndex:
    """With all the memory that it may want: what a bound costs is measured elsewhere."""
    return BlockIndex(2**40)


def capacity(pool: BlockPool) -> int:
    """Blocks that a router knows of: the device's, as the metrics page has them, and those of the host tier."""
    return pool.num_blocks + pool.host.num_blocks


def _told(change: Stored | Removed) -> Told:
    is_host = change.medium is Medium.CPU
    if isinstance(change, Removed):
        return None, list(change.hashes), is_host, False
    parent = change.prefixes[0].parent
    return None if parent is None else parent.hash, [prefix.hash for prefix in change.prefixes], is_host, True
