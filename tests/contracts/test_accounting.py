"""Every count at zero once nobody is served, whatever happened.

The faults: counts of requests in flight that leak on an error or a disconnect; load released when the head arrives or
when a handler returns, while the replica is busy until the body ends; and a way in that forgets to count at all.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from router.core import Outcome, ReplicaState
from router.errors import BadAnswer, ConnectionCut
from tests.contracts.adapters import chat_body, every_reply
from tests.contracts.conftest import Rigs
from tests.contracts.hostile import DONE, answers, event
from tests.fakes import EVENT_STREAM, JSON, FakeReply, FakeUpstream, Station, specs_of, turns, until
from tests.router.nouns import make_request

NUM_ABORTS = 10_000
MOST_VISITORS = 40


@dataclass(eq=False)
class Crowd:
    """Clients that come, leave at random, and replicas that answer at random, all in memory."""

    random: Random
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    visits: dict[FakeReply, "asyncio.Task[None]"] = field(default_factory=dict)
    num_aborts: int = 0
    phases: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.station = Station(self.upstream, specs_of("abc"), max_in_flight=4, max_open_requests=MOST_VISITORS - 5)

    async def live(self) -> None:
        step = self.random.choice((self.come, self.come, self.leave, self.leave, self.answer, self.answer, self.change))
        step()
        await turns(self.random.randrange(3))
        self.visits = {reply: task for reply, task in self.visits.items() if not task.done()}

    def come(self) -> None:
        if len(self.visits) < MOST_VISITORS:
            now, reply = self.station.clock(), FakeReply()
            body = chat_body(user=self.random.randrange(9))
            is_stream = self.random.random() < 0.7
            request = make_request(body=body, arrived=now, deadline=now + 600.0, is_stream=is_stream)
            self.visits[reply] = asyncio.ensure_future(self.station.proxy.handle(request, reply))

    def leave(self) -> None:
        leavers = [reply for reply in self.visits if reply.flow is not None and reply.outcome is None]
        if leavers:
            reply = self.random.choice(leavers)
            self.phases[self.phase(reply)] += 1
            reply.leave()
            self.num_aborts += 1

    def answer(self) -> None:
        """Some replica says something of its answer: a head, a part, the end, an error."""
        live = [exchange for exchange in self.upstream.exchanges if exchange.sink is not None]
        self.upstream.exchanges = live
        if not live:
            return
        exchange = self.random.choice(live)
        if not exchange.has_head:
            status = self.random.choice((200, 200, 200, 200, 429, 400))
            exchange.head(status, JSON if self.random.random() < 0.3 else EVENT_STREAM)
        self.random.choice(
            (
                lambda: exchange.send(event("a")),
                lambda: exchange.send(event("b")[:9]),
                lambda: exchange.send(DONE),
                exchange.end,
                lambda: exchange.fail(self.random.choice((ConnectionCut("cut"), BadAnswer("bad")))),
            )
        )()

    def change(self) -> None:
        """The world: a replica goes or returns, connecting or reading takes long, clients are slow, time passes."""
        random, clock = self.random, self.station.clock
        self.upstream.refusing = {name for name in "abc" if random.random() < 0.1}
        for gate in (self.upstream.may_connect, self.station.prompts.may_read):
            gate.set() if random.random() < 0.7 else gate.clear()
        for reply in self.visits:
            if reply.flow is not None and reply.outcome is None and random.random() < 0.2:
                random.choice((reply.flow.pause, reply.flow.resume))()
        clock.now += random.choice((0.0, 0.1, 3.0, 20.0))
        self.station.tick(0.0)
        self.station.budget.saved = 10.0
        self.station.queue.pump()

    def phase(self, reply: FakeReply) -> str:
        relay = reply.flow
        if reply.status is not None:
            return "told"
        return "asked" if getattr(relay, "_exchange", None) is not None else "before"

    @property
    def num_in_flight(self) -> int:
        return sum(replica.in_flight for replica in self.station.registry.replicas())


async def test_ten_thousand_random_aborts_leave_every_count_at_zero() -> None:
    crowd = Crowd(Random(11))
    while crowd.num_aborts < NUM_ABORTS:
        await crowd.live()
        open_leases = [lease for lease in crowd.station.leases if lease.outcome is None]
        assert crowd.num_in_flight == len(open_leases)
        crowd.station.leases = open_leases
    assert min(crowd.phases[phase] for phase in ("before", "asked", "told")) > NUM_ABORTS / 50
    crowd.upstream.may_connect.set()
    crowd.station.prompts.may_read.set()
    await turns()
    for reply in crowd.visits:
        reply.leave()
    await until(lambda: all(task.done() for task in crowd.visits.values()))
    assert crowd.station.left_over == {}
    assert crowd.upstream.num_live == 0
    assert crowd.upstream.num_connecting == 0
    assert len(crowd.station.queue._lines["m"].line) == 0
    assert all(replica.state is ReplicaState.READY for replica in crowd.station.registry.replicas())


async def test_a_replica_is_busy_until_the_body_ends(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1)
    client = await rig.ask(stream=True)
    call = await rig.call()
    [replica] = rig.station.registry.replicas()
    assert (replica.in_flight, replica.prefilling) == (1, 1)
    call.stream()
    await turns()
    assert (replica.in_flight, replica.prefilling) == (1, 1), "a head is no token"
    call.send(event("a"))
    await client.read_until(event("a"))
    assert (replica.in_flight, replica.prefilling) == (1, 0)
    call.send(DONE)
    await client.read_until(DONE)
    assert replica.in_flight == 1
    call.end()
    await client.answer()
    await rig.until_idle()
    assert replica.in_flight == 0


async def test_whatever_its_form_a_request_is_counted(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=2, max_in_flight=1)
    first, second = await rig.ask(stream=True), await rig.ask(stream=False)
    await rig.call(1)
    assert sorted(replica.in_flight for replica in rig.station.registry.replicas()) == [1, 1]
    third = await rig.ask()
    await until(lambda: rig.station.queue.num_waiting == 1)
    rig.script.otherwise = answers({"id": 1})
    first.leave()
    assert (await third.answer()).payload == b'{"id": 1}'
    second.leave()


@every_reply
async def test_every_lease_ends_once_with_how_the_request_ended(rigs: Rigs) -> None:
    rig = await rigs.open(num_replicas=1)
    rig.script.otherwise = answers({"id": 1})
    await (await rig.ask()).answer()
    rig.script.otherwise = answers({}, 400)
    await (await rig.ask()).answer()
    rig.script.otherwise = None
    client = await rig.ask()
    await rig.call(2)
    client.leave()
    await rig.until_idle()
    assert rig.station.outcomes == [Outcome.OK, Outcome.REJECTED, Outcome.CLIENT_GONE]
    counts = rig.station.metrics.requests.counts
    assert counts == {
        ("m", "ok", "200"): 1,
        ("m", "rejected", "400"): 1,
        ("m", "client_gone", "0"): 1,
    }
