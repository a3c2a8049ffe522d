"""Prompts computed by one replica for another: how long their KV takes, and whole runs with roles."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.prefixes import Change
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.knowledge import Knowledge
from loadtest.simulator.pairs import Links, Pairs, roles
from loadtest.simulator.profile import Overheads
from loadtest.simulator.replica import Listener, SimReplica
from loadtest.simulator.setup import Setup
from loadtest.simulator.simulate import Finished, simulate
from loadtest.simulator.workload import Arrival, Workload, Writer
from tests.loadtest.simulator.small import BLOCK_SIZE, PROFILE, setup

# A block of 64 tokens takes 0.1 + 0.064 s alone.
SLOW = Pairs(num_prefill=1, num_decode=1, bytes_per_token=1000, bytes_per_s=1e6, setup_s=0.1)
FAST = Pairs(num_prefill=1, num_decode=2, bytes_per_token=131_072, bytes_per_s=25e9, setup_s=0.02)


class Fleet:
    """Replicas by id, and the links between them."""

    def __init__(self, num_blocks: int = 32) -> None:
        self.loop = VirtualLoop()
        self.links = Links(self.loop, SLOW)
        self.told: list[tuple[str, Change]] = []
        self.began = 0.0
        self.replicas = {id: self._new(id, num_blocks) for id in ("first", "second", "third")}

    def compute(self, id: str, *requests: Request) -> None:
        for request in requests:
            self.replicas[id].submit(request, Listener(lambda _: None, lambda: None))
        self.loop.run()

    def fetch(self, source: str, target: str, request: Request) -> list[float]:
        """When it will have ended, in a list that is empty until then."""
        ends: list[float] = []
        self.links.fetch(
            self.replicas[source], self.replicas[target], request, lambda: ends.append(self.loop.now - self.began)
        )
        return ends

    def start(self) -> None:
        self.began = self.loop.now

    def pool(self, id: str) -> BlockPool:
        return self.replicas[id].core.scheduler.pool

    def _new(self, id: str, num_blocks: int) -> SimReplica:
        scheduler = Scheduler(BlockPool(num_blocks, BLOCK_SIZE, records_changes=True), 8, 8192)
        on_changes = lambda id, changes: self.told.extend((id, each) for each in changes)  # noqa: E731
        return SimReplica(id, self.loop, EngineCore(scheduler), PROFILE, Overheads(0.0, 0.0, 0.0), on_changes)


def a_request(number: int, num_blocks: int, shared_blocks: int = 0) -> Request:
    prompt = (7,) * (shared_blocks * BLOCK_SIZE) + (100 + number,) * ((num_blocks - shared_blocks) * BLOCK_SIZE) + (9,)
    return Request(id=str(number), prompt=prompt, sampling=Sampling(max_tokens=1, seed=1000 + number), arrived_s=0.0)


def test_kv_takes_its_bytes_and_then_whoever_begins_alike_finds_it() -> None:
    fleet, request = Fleet(), a_request(1, 5)
    fleet.compute("first", request)
    fleet.start()
    ends = fleet.fetch("first", "second", request)
    assert fleet.pool("second").num_used == fleet.pool("first").num_used == 5, "held while it is on its way"
    fleet.loop.run()
    assert ends == [pytest.approx(0.1 + 5 * 0.064)]
    assert fleet.pool("second").num_used == fleet.pool("first").num_used == 0
    assert len(fleet.replicas["second"].offer(request)) == 5
    assert {id for id, _ in fleet.told} == {"first", "second"}, "a router hears of it by events"
    assert repr(fleet.links) == "<Links 1 transfers of 320 tokens>"


def test_what_the_other_holds_already_is_not_sent_again() -> None:
    fleet = Fleet()
    fleet.compute("second", a_request(1, 4, shared_blocks=3))
    request = a_request(2, 5, shared_blocks=3)
    fleet.compute("first", request)
    fleet.start()
    ends = fleet.fetch("first", "second", request)
    fleet.loop.run()
    assert ends == [pytest.approx(0.1 + 2 * 0.064)]
    fleet.start()
    again = fleet.fetch("first", "second", request)
    assert again == [0.0], "all of it is there"


def test_transfers_of_one_link_wait_for_each_other_and_those_of_others_do_not() -> None:
    fleet = Fleet()
    one, two, other = a_request(1, 2), a_request(2, 2), a_request(3, 2)
    fleet.compute("first", one, two)
    fleet.compute("third", other)
    fleet.start()
    ends = [fleet.fetch("first", "second", one), fleet.fetch("first", "second", two)]
    apart = fleet.fetch("third", "third", other)
    fleet.loop.run()
    alone_s = 0.1 + 2 * 0.064
    assert [each[0] for each in ends] == [pytest.approx(alone_s), pytest.approx(2 * alone_s)]
    assert apart == [0.0]


def test_where_there_is_no_room_nothing_comes_and_nothing_is_held() -> None:
    fleet, request = Fleet(num_blocks=8), a_request(1, 6)
    fleet.compute("first", request)
    others = fleet.pool("second").allocate(4)
    fleet.start()
    assert fleet.fetch("first", "second", request) == [0.0]
    assert fleet.pool("second").num_used == 4
    assert fleet.pool("first").num_used == 0
    fleet.pool("second").release(others)


def test_who_waits_at_a_replica_whose_blocks_were_on_their_way_goes_on_then() -> None:
    fleet, request = Fleet(num_blocks=8), a_request(1, 6)
    fleet.compute("first", request)
    fleet.start()
    fleet.fetch("first", "second", request)
    answered: list[float] = []
    for id in ("first", "second"):
        fleet.replicas[id].submit(a_request(2, 7), Listener(lambda _: None, lambda: answered.append(fleet.loop.now)))
    fleet.loop.run()
    assert len(answered) == 2
    assert min(answered) > fleet.began + 0.1 + 6 * 0.064


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.floats(0.0, 0.5)), min_size=1, max_size=12))
def test_whatever_is_fetched_no_block_stays_held_and_no_token_goes_twice_at_a_time(
    asked: list[tuple[int, int, float]],
) -> None:
    fleet = Fleet(num_blocks=24)
    requests = [a_request(number, shared + size, shared) for number, (size, shared, _) in enumerate(asked)]
    fleet.compute("first", *requests)
    began = fleet.loop.now
    num_ended = 0

    def ended() -> None:
        nonlocal num_ended
        num_ended += 1

    for request, (_, _, after_s) in zip(requests, asked, strict=True):
        source, target = fleet.replicas["first"], fleet.replicas["second"]
        fleet.loop.at(began + after_s, fleet.links.fetch, source, target, request, ended)
    fleet.loop.run()
    assert num_ended == len(asked)
    assert fleet.pool("first").num_used == fleet.pool("second").num_used == 0
    busy_s = fleet.links.num_transfers * SLOW.setup_s + fleet.links.num_moved_tokens * 1e-3
    assert fleet.loop.now - began >= busy_s - 1e-9, "one after the other"


# Whole runs.


def paired(pairs: Pairs = FAST, num_requests: int = 300, **given: object) -> Setup:
    made = setup(num_replicas=4, load=8.0, num_requests=num_requests)
    return replace(made, pairs=pairs, **given)  # type: ignore[arg-type]


def seen(finished: Finished) -> list[tuple[object, ...]]:
    return [
        (job.ask.number, job.replica_id, job.num_cached_tokens, job.first_token_s, job.ended_s) for job in finished.jobs
    ]


def test_the_first_replicas_compute_and_the_next_decode() -> None:
    assert roles(FAST, ["a", "b", "c", "d"]) == {"a": "prefill", "b": "decode", "c": "decode"}


@pytest.mark.parametrize("policy", ["pointsman", "llm-d-token-aware", "round-robin"])
def test_every_request_is_answered_once_and_some_by_two(policy: str) -> None:
    finished = simulate(paired(policy=policy))
    assert [job.ask.number for job in finished.jobs] == list(range(300))
    assert all(job.first_token_s is not None and job.ended_s is not None for job in finished.jobs)
    assert finished.links is not None
    assert finished.links.num_transfers > 0
    computing, *others = finished.replicas
    assert computing.num_steps > 0
    assert all(job.replica_id != computing.id for job in finished.jobs), "it answers nobody"
    assert all(replica.core.scheduler.pool.num_used == 0 for replica in finished.replicas)
    assert all(not replica.core.has_work for replica in (computing, *others))


@pytest.mark.parametrize("knowledge", [Knowledge(), Knowledge(routers=3, metrics_interval_ms=50, kv_event_delay_ms=50)])
def test_the_same_seed_gives_the_same_run_and_stretches_change_nothing(knowledge: Knowledge) -> None:
    first = simulate(paired(knowledge=knowledge))
    assert first.links is not None
    assert first.links.num_transfers > 0
    assert seen(simulate(paired(knowledge=knowledge))) == seen(first)
    assert seen(simulate(paired(knowledge=knowledge, can_stretch=False))) == seen(first)


def test_what_came_over_the_network_is_not_counted_as_a_hit() -> None:
    """Else a fleet with roles would seem to reuse what it computed a moment before."""
    writer = Writer(PROFILE, BLOCK_SIZE)
    arrivals = tuple(
        Arrival(number / 160, writer.ask(number, ((writer.ids["own", number], 1500),), 40)) for number in range(300)
    )
    finished = simulate(paired(workload=Workload(arrivals, BLOCK_SIZE), load=1.0))
    assert finished.links is not None
    assert finished.links.num_transfers > 0
    assert all(job.num_cached_tokens == 0 for job in finished.jobs)


def test_over_a_slow_network_less_is_handed_over() -> None:
    moved = []
    for bytes_per_s in (25e9, 1e7):
        finished = simulate(paired(replace(FAST, bytes_per_s=bytes_per_s), num_requests=600))
        assert finished.links is not None
        moved.append(finished.links.num_moved_tokens)
    assert moved[1] < moved[0]
