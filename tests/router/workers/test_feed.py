"""The feed and its workers' mirrors over a real socket, in one process: what the one sees, all the others know."""

import asyncio
import os
import random
import socket
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from router.config import Settings
from router.core import Outcome
from router.errors import ConnectionCut, UpstreamStatus
from router.prefix.caches import Caches
from router.prefix.index import BlockIndex
from router.prefix.knowledge import Knowing
from router.replicas.lessons import Lessons
from router.replicas.registry import Registry
from router.workers import doors, frames
from router.workers.board import Board
from router.workers.desk import Desk
from router.workers.feed import Dispatched, Feed
from router.workers.frames import Drain, Hello
from router.workers.line import FrameReader, Line
from router.workers.mirror import Mirror
from router.workers.sharing import Sharing
from tests.router.nouns import make_demand, make_prompt
from tests.router.replicas.fakes import FakeReplica, Fleet, make_decision

DOCUMENT = {"tokenizer": {"vocabulary": "x" * 10_000}, "block_size": 32}


async def until(condition: Callable[[], object]) -> None:
    """Polls: for what happens over sockets of this process."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class Crew:
    """A worker as far as the feed goes: registry, desk, index, mirror and link."""

    def __init__(self, board: Board, number: int, address: str) -> None:
        board.raise_row(number)
        self.documents: dict[str, object] = {}
        self.lost: list[str] = []
        desk = Desk(board, number)
        self.sharing = Sharing(desk, number, address, [])
        self.index = BlockIndex(2**20)
        self.caches = Caches(self.index, lambda _: True, listens=False)
        self.registry = Registry(
            Fleet(),
            on_change=lambda: None,
            on_lost=self._lose,
            on_identified=lambda replica, _, document: self.documents.update({replica.id: document}),
            on_suspect=self.sharing.suspected,
            on_cooled=self.sharing.cooled,
        )
        self.lessons = Lessons(self.registry.members)
        self.mirror = Mirror(
            self.registry,
            desk,
            self.caches,
            on_lessons=lambda told: self.lessons.take(told, self.registry.clock()),
        )
        self.task = asyncio.create_task(self.sharing.follow(self.mirror.apply))

    def states(self) -> dict[str, str]:
        return {replica.id: replica.state.name for replica in self.registry.replicas()}

    def send(self, replica_id: str, first_hash: int) -> None:
        """A dispatch of four blocks."""
        replica = next(each for each in self.registry.replicas() if each.id == replica_id)
        demand = make_demand(prompt=make_prompt(64, first_hash=first_hash))
        self.sharing.dispatched(demand, make_decision(replica), now=0.0)

    def fail(self, replica_id: str, error: Exception) -> None:
        replica = next(each for each in self.registry.replicas() if each.id == replica_id)
        lease = self.registry.reserve(make_demand(pool=replica.pool), make_decision(replica))
        lease.release(Outcome.UPSTREAM_FAILED, error)

    def knowing(self) -> Knowing:
        (replica,) = self.registry.replicas()
        return self.caches.knowledge.of(replica).knowing

    def holds(self, replica_id: str, first_hash: int) -> bool:
        return self.index.match([first_hash]).get(replica_id, 0) == 1

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    def _lose(self, replica_id: str) -> None:
        self.lost.append(replica_id)
        self.caches.lost(replica_id)


@dataclass(eq=False)
class Host:
    """A board, an address, a feed that can be started again, and workers."""

    board: Board
    listener: socket.socket
    address: str
    replicas: list[FakeReplica]
    settings: dict[str, Any] = field(default_factory=dict)
    options: str = ""
    crews: list[Crew] = field(default_factory=list)
    feed: Feed | None = None
    _task: "asyncio.Task[None] | None" = None

    def join(self) -> Crew:
        self.crews.append(Crew(self.board, len(self.crews), self.address))
        return self.crews[-1]

    def start_feed(self, *drained: str) -> None:
        settings = Settings(
            replica=tuple(replica.url + self.options for replica in self.replicas),
            **{"probe_interval_s": 0.02, "load_interval_s": 0.02, **self.settings},
        )
        self.feed = Feed(settings, self.board, self.listener.dup(), drained)
        self._task = asyncio.create_task(self.feed.run())

    async def stop_feed(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def until_ready(self) -> None:
        ready = {replica.id: "READY" for replica in self.replicas}
        await until(lambda: all(crew.states() == ready for crew in self.crews))


@asynccontextmanager
async def host(*replicas: FakeReplica, num_workers: int = 2, options: str = "", **settings: Any) -> AsyncIterator[Host]:
    board = Board.create(4)
    listener, address = doors.listen_for_feed()
    listener.setblocking(False)
    host = Host(board, listener, address, list(replicas), settings, options)
    host.start_feed()
    for _ in range(num_workers):
        host.join()
    try:
        yield host
    finally:
        for crew in host.crews:
            await crew.stop()
        await host.stop_feed()
        listener.close()
        board.close()


async def test_workers_know_what_the_feed_sees() -> None:
    async with FakeReplica("m", adapters={"sql": "m"}) as ours, FakeReplica("other") as foreign:
        ours.answers["/pointsman/tokenizer"] = (200, DOCUMENT)
        ours.answers["/metrics"] = (200, "vllm:num_requests_running 7\nvllm:num_requests_waiting 2\n")
        async with host(ours, foreign) as rig:
            await rig.until_ready()
            for crew in rig.crews:
                assert {entry["id"] for entry in crew.registry.models()} == {"m", "sql", "other"}
                assert crew.registry.resolve("sql")[0].block_size == 32
                assert isinstance(crew.documents[ours.id], dict)
                assert crew.documents[foreign.id] is None
            shown = [each for crew in rig.crews for each in crew.registry.replicas() if each.id == ours.id]
            await until(lambda: [replica.foreign_requests for replica in shown] == [9, 9])


async def test_what_workers_have_there_is_not_foreign() -> None:
    async with FakeReplica("m") as replica:
        replica.answers["/metrics"] = (200, "vllm:num_requests_running 5\nvllm:num_requests_waiting 0\n")
        async with host(replica) as rig:
            await rig.until_ready()
            for crew in rig.crews:
                (there,) = crew.registry.replicas()
                crew.registry.reserve(make_demand(pool=there.pool), make_decision(there))
            await until(lambda: all(crew.registry.replicas()[0].foreign_requests == 3 for crew in rig.crews))


async def test_a_request_that_failed_in_one_worker_makes_the_feed_look_and_all_know() -> None:
    async with FakeReplica("m") as replica, host(replica, probe_interval_s=3600.0) as rig:
        await rig.until_ready()
        await replica.die()
        rig.crews[0].fail(replica.id, ConnectionCut("cut"))
        await until(lambda: all(crew.states() == {replica.id: "FAILED"} for crew in rig.crews))
        assert all(replica.id in crew.lost for crew in rig.crews)


async def test_an_adapter_that_one_worker_had_loaded_is_soon_known_to_all() -> None:
    async with FakeReplica("m") as replica, host(replica, probe_interval_s=3600.0) as rig:
        await rig.until_ready()
        replica.serve("m", adapters={"sql": "m"})
        (member,) = rig.crews[0].registry.members()
        rig.crews[0].sharing.relisted(member)
        await until(lambda: all(crew.registry.find("sql") is not None for crew in rig.crews))


async def test_workers_hear_which_adapters_lie_in_a_replicas_slots() -> None:
    async with FakeReplica("m", adapters={"sql": "m"}) as replica:
        lies = 'vllm:lora_adapter_loaded{adapter_name="sql",level="gpu"} 1.0'
        replica.answers["/metrics"] = (200, f"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n{lies}\n")
        async with host(replica) as rig:
            await rig.until_ready()
            shown = [crew.registry.replicas()[0] for crew in rig.crews]
            await until(lambda: [set(each.resident_adapters) for each in shown] == [{"sql"}] * 2)


async def test_a_push_back_cools_the_replica_for_all() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        one, other = rig.crews
        pool, _ = other.registry.resolve("m")
        one.fail(replica.id, UpstreamStatus(429, b"", retry_after_s=30.0))
        await until(lambda: not other.registry.available(pool, other.registry.clock()))
        assert other.states() == {replica.id: "READY"}
        assert other.registry.breaker_state(replica.id) == "closed"


async def test_dispatches_are_known_to_the_siblings_and_to_who_comes_later() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        one, other = rig.crews
        one.send(replica.id, 1000)
        await until(lambda: other.holds(replica.id, 1000))
        assert not one.holds(replica.id, 1000), "its own placement has told its index already"
        late = rig.join()
        await until(lambda: late.holds(replica.id, 1000))


async def test_what_a_lost_replica_had_cached_is_forgotten_by_all() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        one, other = rig.crews
        one.send(replica.id, 1000)
        await until(lambda: other.holds(replica.id, 1000))
        await replica.die()
        await until(lambda: not other.holds(replica.id, 1000))
        await replica.return_()
        await rig.until_ready()
        late = rig.join()
        await until(lambda: late.states() == {replica.id: "READY"})
        assert not late.holds(replica.id, 1000)


async def test_a_drain_is_in_force_in_all_workers_when_its_frame_is_applied() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        assert rig.feed is not None
        ours, theirs = socket.socketpair()
        with theirs:
            line = Line(lambda *_: None, lambda _: None)
            await asyncio.get_running_loop().create_connection(lambda: line, sock=ours)
            rig.feed.drain(Drain(replica.id, True), line)
            answer = frames.news.decode(FrameReader().feed(theirs.recv(1000))[0])
            line.close()
        sequence = answer.sequence  # type: ignore[union-attr]
        await until(lambda: all(row.applied >= sequence for row in rig.board.live_rows()))
        assert [crew.states() for crew in rig.crews] == [{replica.id: "DRAINING"}] * 2


async def test_workers_keep_what_they_know_while_there_is_no_feed_and_while_a_new_one_looks() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        column = rig.crews[0].sharing.desk.board.num_used_columns
        await rig.stop_feed()
        assert [crew.states() for crew in rig.crews] == [{replica.id: "READY"}] * 2
        replica.hanging.add("/health")
        rig.start_feed()
        late = rig.join()
        await until(lambda: late.states() == {replica.id: "STARTING"})
        assert [crew.states() for crew in rig.crews[:2]] == [{replica.id: "READY"}] * 2
        assert rig.board.num_used_columns == column, "it has the column that it had"
        await replica.die()
        await until(lambda: all(crew.states() == {replica.id: "STARTING"} for crew in rig.crews))


async def test_who_waits_for_a_new_feed_loses_nothing_when_it_comes() -> None:
    """Its first snapshot is of what it has listed, never of nothing: no replica goes and comes back."""
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        known = [crew.registry.replicas() for crew in rig.crews]
        await rig.stop_feed()
        await until(lambda: not any(crew.sharing.is_connected for crew in rig.crews))
        await until(lambda: all(crew.sharing.is_connected for crew in rig.crews))
        rig.start_feed()
        late = rig.join()
        await until(lambda: late.states() == {replica.id: "READY"})
        assert [crew.registry.replicas() for crew in rig.crews[:2]] == known
        assert [crew.lost for crew in rig.crews[:2]] == [[], []]


async def test_a_new_feed_keeps_drained_what_was() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        await rig.stop_feed()
        rig.start_feed(replica.id)
        await until(lambda: all(crew.states() == {replica.id: "DRAINING"} for crew in rig.crews))


async def test_a_replica_that_left_while_there_was_no_feed_is_gone() -> None:
    async with FakeReplica("m") as stays, FakeReplica("m") as goes, host(stays, goes) as rig:
        await rig.until_ready()
        await rig.stop_feed()
        rig.replicas = [stays]
        rig.start_feed()
        await rig.until_ready()


async def test_a_worker_that_does_not_read_is_cut_off_and_delays_nobody() -> None:
    async with FakeReplica("m") as replica, host(replica, num_workers=1) as rig:
        await rig.until_ready()
        deaf = doors.connect_to_feed(rig.address)
        with deaf:
            deaf.send(frames.pack(Hello(3)))
            feed = rig.feed
            assert feed is not None
            await until(lambda: len(feed._workers) == 2)
            big = frames.pack(frames.Delta(1, [], [], [frames.Document("x", {"tokenizer": "x" * 20_000_000})]))
            for _ in range(4):
                feed._send_all(big)
            await until(lambda: len(feed._workers) < 2)
        late = rig.join()
        await until(lambda: late.states() == {replica.id: "READY"})


async def test_another_version_is_refused() -> None:
    async with FakeReplica("m") as replica, host(replica, num_workers=1) as rig:
        with doors.connect_to_feed(rig.address) as stranger:
            stranger.send(frames.pack(Hello(3, version=99)))
            await until(lambda: _is_closed(stranger))


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_of_dispatches_only_the_latest_are_kept() -> None:
    dice, kept = random.Random(1), Dispatched(1000)
    for _ in range(500):
        kept.keep(os.urandom(dice.randrange(1, 200)))
        assert kept.num_bytes == sum(map(len, kept.frames)) <= 1000
    assert kept.num_bytes > 800


def test_a_chain_survives_packing() -> None:
    hashes = [0, 1, 2**64 - 1]
    assert list(array("Q", array("Q", hashes).tobytes())) == hashes
