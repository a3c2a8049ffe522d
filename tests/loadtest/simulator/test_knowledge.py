"""How what replicas know reaches the routers: at the time that it should, and to all of them."""

import pytest

from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.knowledge import Knowledge, Wires
from loadtest.simulator.profile import overheads
from loadtest.simulator.replica import Listener, SimReplica
from loadtest.simulator.station import Station, open_station
from pointsman.blockhash import block_hashes
from tests.loadtest.simulator.small import PROFILE

BLOCK_SIZE = 16
PROMPT = tuple(range(100))


class Rig:
    """One replica that gets one request at 1 s, and routers that hear of it."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.loop = VirtualLoop()
        pool = BlockPool(64, BLOCK_SIZE, records_changes=True)
        self.replica = SimReplica(
            "r",
            self.loop,
            EngineCore(Scheduler(pool, 8, 8192)),
            PROFILE,
            overheads(),
            on_changes=lambda id, changes: self.wires.on_changes(id, changes),
        )
        self.stations = [self.station(seed) for seed in range(knowledge.routers)]
        self.wires = Wires(self.loop, knowledge, [self.replica], self.stations)
        self.wires.open()
        request = Request("a", PROMPT, Sampling(max_tokens=400), 1.0)
        self.loop.at(1.0, self.replica.submit, request, Listener(lambda _: self.notice(), lambda: None))
        self.first_token_s = 0.0

    def station(self, seed: int) -> Station:
        return open_station(self.loop, ["r"], "pointsman", seed, lambda *_: None, lambda _: None, BLOCK_SIZE, 64)

    def notice(self) -> None:
        self.first_token_s = self.loop.now

    def until(self, when: float) -> None:
        self.loop.at(when, self.loop.stop)
        self.loop.run()

    def matches(self) -> list[int]:
        hashes = block_hashes(PROMPT, BLOCK_SIZE)
        return [station.placement.index.match(hashes).get("r", 0) for station in self.stations]


def test_fresh_events_reach_every_router_at_once() -> None:
    rig = Rig(Knowledge(routers=3))
    rig.until(1.01)
    assert rig.matches() == [0, 0, 0]
    rig.until(1.1)
    assert rig.first_token_s > 0
    assert rig.matches() == [6, 6, 6]


def test_late_events_come_when_they_are_due_and_not_before() -> None:
    rig = Rig(Knowledge(kv_event_delay_ms=200))
    rig.until(1.15)
    assert 0 < rig.first_token_s < 1.15
    assert rig.matches() == [0]
    rig.until(rig.first_token_s + 0.2)
    assert rig.matches() == [6]


def test_without_events_routers_hear_nothing_of_caches() -> None:
    rig = Rig(Knowledge(kv_events=False))
    rig.until(2.0)
    assert rig.matches() == [0]


def test_polled_metrics_are_as_old_as_the_interval_and_fresh_ones_of_the_moment() -> None:
    polled, fresh = Rig(Knowledge(metrics_interval_ms=1000)), Rig(Knowledge())
    for rig in (polled, fresh):
        rig.until(1.5)
    replicas = [rig.stations[0].placement.available(rig.stations[0].pool, 1.5)[0] for rig in (polled, fresh)]
    loads = [replica.load for replica in replicas]
    assert loads[0] is not None
    assert loads[1] is not None
    assert (loads[0].at, loads[0].running) == (1.0, 0)
    assert (loads[1].at, loads[1].running) == (1.5, 1)
    # Nobody of ours sent it: it is foreign work.
    assert [replica.foreign_requests for replica in replicas] == [0, 1]
    polled.until(2.5)
    assert replicas[0].load is not None
    assert replicas[0].load.at == 2.0
    assert replicas[0].load.kv_used_ratio == pytest.approx(0.25, abs=0.05)
