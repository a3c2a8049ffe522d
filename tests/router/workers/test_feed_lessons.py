"""What one worker learned of a replica's speed, its siblings on this host know by the feed: those that are there, those
that come later, and those that come after a new feed."""

import time

import msgspec

from router.replicas.lessons import Lesson
from router.replicas.member import Member
from router.replicas.speeds import Source
from router.workers import warming
from router.workers.frames import Recall
from tests.router.replicas.fakes import FakeReplica
from tests.router.replicas.test_lessons import FAST, SLOW, make_lesson, see
from tests.router.served import served
from tests.router.workers.test_feed import Crew, Host, host, until
from tests.router.workers.test_feed_caches import Written
from tests.router.workers.test_warming import answering


def member(crew: Crew) -> Member:
    (found,) = crew.registry.members()
    return found


def learn(crew: Crew) -> Member:
    """By itself, and tell the feed of it."""
    there = member(crew)
    see(there, SLOW, 40)
    crew.sharing.learned(crew.lessons.due(crew.registry.clock()))
    return there


def tell(rig: Host, crew: Crew, **fields: object) -> None:
    now = crew.registry.clock()
    crew.sharing.learned([lesson(rig.replicas[0], now, **fields)])


def lesson(replica: FakeReplica, now: float, **fields: object) -> Lesson:
    return make_lesson(**{"replica_id": replica.id, "since": now, "at": now, **fields})


async def test_siblings_know_and_so_does_who_comes_later() -> None:
    async with FakeReplica("m") as replica, host(replica, num_workers=3) as rig:
        await rig.until_ready()
        one, *others = rig.crews
        taught = learn(one)
        await until(lambda: all(member(each).speeds.source is Source.SIBLING for each in others))
        assert [member(each).replica.step for each in others] == [taught.replica.step] * 2
        late = rig.join()
        await until(lambda: late.states() == {replica.id: "READY"} and member(late).speeds.source is Source.SIBLING)
        assert taught.speeds.source is Source.OWN, "nobody tells it what it said itself"
        assert one.lessons.num_taken == 0


async def test_who_told_may_die_and_what_it_told_stands() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        one, other = rig.crews
        learn(one)
        await until(lambda: member(other).speeds.source is Source.SIBLING)
        await one.stop()
        rig.crews.remove(one)
        late = Crew(rig.board, 2, rig.address)
        rig.crews.append(late)
        await until(lambda: late.states() == {replica.id: "READY"} and member(late).speeds.source is Source.SIBLING)


async def test_a_new_feed_is_told_again() -> None:
    async with FakeReplica("m") as replica, host(replica, num_workers=1) as rig:
        await rig.until_ready()
        learn(rig.crews[0])
        await rig.stop_feed()
        rig.start_feed()
        late = rig.join()
        await until(lambda: late.states() == {replica.id: "READY"} and member(late).speeds.source is Source.SIBLING)


async def test_what_was_learned_of_a_replica_before_it_was_lost_is_told_to_nobody() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        one, other = rig.crews
        learn(one)
        await until(lambda: member(other).speeds.source is Source.SIBLING)
        await replica.die()
        await until(lambda: all(crew.states() == {replica.id: "FAILED"} for crew in rig.crews))
        await replica.return_()
        await rig.until_ready()
        assert [member(crew).speeds.source for crew in rig.crews] == [Source.PRIOR] * 2
        late = rig.join()
        await until(lambda: late.states() == {replica.id: "READY"})
        assert member(late).speeds.source is Source.PRIOR
        tell(rig, one, step=FAST, since=one.registry.clock())
        for crew in (other, late):
            await until(lambda crew=crew: member(crew).replica.step == FAST)  # type: ignore[misc]


async def test_an_absurd_lesson_stays_without_effect_and_cuts_nobody_off() -> None:
    async with FakeReplica("m") as replica, host(replica) as rig:
        await rig.until_ready()
        one, other = rig.crews
        tell(rig, one, adapter_load_s=float("nan"))
        tell(rig, one, model="other")
        await until(lambda: other.lessons.num_refused == 2)
        assert member(other).speeds.source is Source.PRIOR
        tell(rig, one, at=one.registry.clock())
        await until(lambda: member(other).replica.step == FAST)


async def test_a_feed_that_begins_asks_a_sibling_and_is_asked_itself() -> None:
    async with FakeReplica("m") as replica:
        packed = warming.pack_lessons([lesson(replica, time.monotonic())])
        async with (
            served(answering(200, packed, path=warming.LESSONS_PATH)) as url,
            host(replica, warm_from=(url,)) as rig,
        ):
            await rig.until_ready()
            await until(lambda: tick(rig) == [Source.SIBLING] * 2)
            assert rig.feed is not None
            line = Written()
            rig.feed.recall(Recall(5), line)
            (answer,) = line.messages
            assert answer.number == 5
            (known,) = msgspec.msgpack.decode(answer.packed, type=list[Lesson])
            assert (known.replica_id, known.step) == (replica.id, FAST)


def tick(rig: Host) -> list[Source]:
    """As once a second."""
    for crew in rig.crews:
        crew.lessons.due(crew.registry.clock())
    return [member(crew).speeds.source for crew in rig.crews]
