"""The book of jobs on real Redis servers: order, fences, retries, expiry, webhooks, and a randomised crowd."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from router.jobs import book as booking
from router.jobs.book import JobBook
from router.jobs.states import NEXT, Claimed, Hook, JobState, NewJob
from router.store import names
from tests.router.store.servers import Server

CHAT = "/v1/chat/completions"
HOOK = Hook("https://example.com/hook")


def new(id: str, **fields: object) -> NewJob:
    return replace(NewJob(id, "o", CHAT, b'{"id":"%b"}' % id.encode()), **fields)  # type: ignore[arg-type]


async def ids_of(book: JobBook, most: int = 100) -> list[str]:
    return [claimed.id for claimed in await book.claim(most)]


async def claim_one(book: JobBook) -> Claimed:
    [claimed] = await book.claim(1)
    return claimed


async def state_of(book: JobBook, id: str) -> JobState:
    job = await book.find(id)
    assert job is not None
    return job.state


def move_time(redis_server: Server, id: str, *kinds: str) -> None:
    """As if the time of these deadlines had come."""
    for kind in kinds:
        redis_server.command("ZADD", names.JOBS + kind, "XX", 1, id)


async def test_lower_priority_goes_first_then_who_came_first(book: JobBook) -> None:
    for id, priority in (("a", 1), ("b", 0), ("c", 2), ("d", 1), ("e", 0)):
        await book.submit([new(id, priority=priority)])
    assert await ids_of(book) == ["b", "e", "a", "d", "c"]


async def test_equal_jobs_keep_their_order_however_many(book: JobBook) -> None:
    """The fault: equal scores, which Redis orders by name."""
    ids = [f"{number * 7919 % 500}" for number in range(500)]
    await book.submit([new(id) for id in ids])
    assert await ids_of(book, 1000) == ids


async def test_a_claim_is_one_holders_alone_and_ends_once(book: JobBook) -> None:
    await book.submit([new("a")])
    claimed = await claim_one(book)
    assert (claimed.owner, claimed.surface, claimed.body, claimed.fence) == ("o", CHAT, b'{"id":"a"}', 1)
    assert await book.claim(1) == []
    assert await book.end(claimed, JobState.SUCCEEDED, 200, b'{"ok":1}')
    assert not await book.end(claimed, JobState.FAILED, 500, b"{}"), "exactly one final result"
    job = await book.get("a", "o")
    assert job is not None
    assert (job.state, job.status, job.result) == (JobState.SUCCEEDED, 200, b'{"ok":1}')
    assert await book.get("a", "other") is None


async def test_what_ended_keeps_no_prompt_and_goes_when_its_time_is_over(book: JobBook, redis_server: Server) -> None:
    await book.submit([new("a", keep_s=100.0)])
    await book.end(await claim_one(book), JobState.SUCCEEDED, 200, b"{}")
    assert redis_server.command("EXISTS", names.JOBS + "body:a") == 0
    assert 0 < redis_server.command("PTTL", names.JOBS + "job:a") <= 100_000


async def test_a_holder_that_dies_loses_its_claim_and_is_not_heard_afterwards(
    book: JobBook, redis_server: Server
) -> None:
    """The faults: work that is lost with a crash, and two final results."""
    await book.submit([new("a")])
    dead = await claim_one(book)
    move_time(redis_server, "a", "leases")
    assert await book.sweep() == (0, 1, 0)
    alive = await claim_one(book)
    assert alive.fence == dead.fence + 1
    assert [each.is_held for each in await book.renew([dead])] == [False]
    assert not await book.end(dead, JobState.SUCCEEDED, 200, b"{}")
    assert await book.end(alive, JobState.SUCCEEDED, 200, b"{}")


async def test_a_lease_that_is_renewed_is_kept(book: JobBook, redis_server: Server) -> None:
    await book.submit([new("a")])
    claimed = await claim_one(book)
    move_time(redis_server, "a", "leases")
    [held] = await book.renew([claimed])
    assert (held.is_held, held.is_cancelled) == (True, False)
    assert await book.sweep() == (0, 0, 0)


async def test_a_job_whose_holders_die_is_parked_with_its_error(book: JobBook, redis_server: Server) -> None:
    await book.submit([new("a")])
    for _ in range(booking.MOST_DEATHS):
        await claim_one(book)
        move_time(redis_server, "a", "leases")
        await book.sweep()
    job = await book.find("a")
    assert job is not None
    assert (job.state, await book.claim(1)) == (JobState.FAILED, [])
    assert "3 times" in job.fault


async def test_another_try_comes_later_at_its_old_place_under_its_old_deadline(
    book: JobBook, redis_server: Server
) -> None:
    """The fault: a retry that is stored with its backoff as its deadline, and jumps the queue."""
    await book.submit([new("a"), new("b")])
    until = redis_server.command("HGET", names.JOBS + "job:a", "queue_until")
    first = await claim_one(book)
    assert await book.end(first, JobState.WAITING, 503, b"{}", "busy")
    assert await state_of(book, "a") is JobState.WAITING
    assert await ids_of(book, 1) == ["b"]
    move_time(redis_server, "a", "delayed")
    await book.submit([new("c")])
    assert await book.sweep() == (1, 0, 0)
    assert redis_server.command("HGET", names.JOBS + "job:a", "queue_until") == until
    assert await ids_of(book) == ["a", "c"]


async def test_tries_are_counted_and_their_delays_grow_to_a_bound(book: JobBook, redis_server: Server) -> None:
    await book.submit([new("a", most_tries=4, delay_s=1.0, most_delay_s=3.0)])
    delays = []
    for _ in range(3):
        claimed = await claim_one(book)
        assert await book.end(claimed, JobState.WAITING, 500, b"{}", "no")
        now_s, now_us = redis_server.command("TIME")
        due = float(redis_server.command("ZSCORE", names.JOBS + "delayed", "a"))
        delays.append(round(due / 1e3 - int(now_s) - int(now_us) / 1e6))
        move_time(redis_server, "a", "delayed")
        await book.sweep()
    assert delays == [1, 2, 3]
    assert await book.end(await claim_one(book), JobState.WAITING, 500, b"{}", "no")
    job = await book.find("a")
    assert job is not None
    assert (job.state, job.status, job.fault) == (JobState.FAILED, 500, "no")


async def test_who_waits_too_long_expires_and_never_runs(book: JobBook, redis_server: Server) -> None:
    await book.submit([new("a"), new("b", queue_timeout_s=0.0)])
    move_time(redis_server, "a", "deadlines")
    assert await book.sweep() == (0, 0, 2)
    assert await book.claim(5) == []
    assert [await state_of(book, id) for id in "ab"] == [JobState.EXPIRED] * 2
    await book.submit([new("c", queue_timeout_s=0.0)])
    assert await book.claim(5) == []
    assert await state_of(book, "c") is JobState.EXPIRED


async def test_a_cancel_is_at_once_where_it_waits_and_heard_where_it_runs(book: JobBook) -> None:
    await book.submit([new("a"), new("b")])
    running = await claim_one(book)
    assert await book.cancel("b", "other") is None
    assert await book.cancel("b", "o") is JobState.CANCELLED
    assert await book.cancel("a", "o") is JobState.RUNNING
    assert [each.is_cancelled for each in await book.renew([running])] == [True]
    assert await book.end(running, JobState.SUCCEEDED, 200, b"{}")
    assert await state_of(book, "a") is JobState.CANCELLED
    assert await book.cancel("a", "o") is JobState.CANCELLED


async def test_what_is_given_back_waits_where_it_waited(book: JobBook) -> None:
    await book.submit([new("a"), new("b")])
    claimed = await claim_one(book)
    await book.give_back([claimed])
    assert await ids_of(book) == ["a", "b"]
    assert not await book.end(claimed, JobState.SUCCEEDED, 200, b"{}")


async def test_the_same_key_gives_the_same_job(book: JobBook, redis_server: Server) -> None:
    assert await book.submit([new("a")], "o:key") == "a"
    assert await book.submit([new("b")], "o:key") == "a"
    assert await book.submit([new("c")], "p:key") == "c"
    assert await ids_of(book) == ["a", "c"]
    redis_server.command("DEL", names.JOBS + "job:a")
    assert await book.submit([new("d")], "o:key") == "d", "what is kept no longer is no answer"


async def test_a_webhook_is_due_at_the_end_and_tried_until_it_is_delivered(book: JobBook, redis_server: Server) -> None:
    await book.submit([new("a", hook=HOOK), new("b")])
    assert await book.due_hooks(10) == []
    for claimed in await book.claim(2):
        await book.end(claimed, JobState.SUCCEEDED, 200, b"{}")
    [due] = await book.due_hooks(10)
    assert (due.job.id, due.attempt, due.job.hook, due.job.state) == ("a", 1, HOOK, JobState.SUCCEEDED)
    assert await book.due_hooks(10) == [], "its sender has a while"
    move_time(redis_server, "a", "hooks")
    [again] = await book.due_hooks(10)
    await book.hooked(due, "delivered")  # a sender that was thought dead
    job = await book.find("a")
    assert job is not None
    assert job.hook_state == "pending"
    await book.hooked(again, "again", 60.0, "500")
    assert await book.due_hooks(10) == []
    move_time(redis_server, "a", "hooks")
    [third] = await book.due_hooks(10)
    await book.hooked(third, "delivered")
    job = await book.find("a")
    assert job is not None
    assert (job.hook_state, third.attempt) == ("delivered", 3)


async def test_a_webhook_that_is_given_up_is_listed_and_sent_anew(book: JobBook) -> None:
    await book.submit([new("a", hook=HOOK)])
    await book.end(await claim_one(book), JobState.FAILED, 400, b"{}")
    [due] = await book.due_hooks(1)
    await book.hooked(due, "dead", 0.0, "410")
    [dead] = await book.dead_hooks()
    assert (dead.id, dead.hook_state, dead.hook_fault) == ("a", "failed", "410")
    assert not await book.replay("a", "other")
    assert await book.replay("a", "o")
    assert await book.dead_hooks() == []
    [due] = await book.due_hooks(1)
    assert due.attempt == 1


async def test_lines_of_a_batch_are_told_to_it_and_kept_for_it(book: JobBook, redis_server: Server) -> None:
    await book.submit([new("l1", batch="B"), new("l2", batch="B")])
    for claimed in await book.claim(2):
        await book.end(claimed, JobState.SUCCEEDED, 200, b"{}")
    assert redis_server.command("LRANGE", names.JOBS + "batch:B:ended", 0, -1) == [b"l1", b"l2"]
    assert redis_server.command("TTL", names.JOBS + "job:l1") == -1


@pytest.mark.parametrize("seed", range(3))
async def test_a_crowd_of_holders_that_die_gives_each_job_exactly_one_end(
    book: JobBook, redis_server: Server, seed: int
) -> None:
    dice, numbers = random.Random(seed), itertools.count()
    ends: Counter[str] = Counter()
    held: list[Claimed] = []
    states: dict[str, JobState] = {}
    for _ in range(150):
        step = dice.random()
        if step < 0.3:
            await book.submit([new(f"j{next(numbers)}", priority=dice.randrange(3), hook=HOOK)])
        elif step < 0.55:
            held += await book.claim(dice.randrange(4))
        elif step < 0.85 and held:
            claimed = held.pop(dice.randrange(len(held)))
            state = dice.choice([JobState.SUCCEEDED, JobState.FAILED, JobState.WAITING])
            was_ours = await book.end(claimed, state, 200, b"{}")
            now = await state_of(book, claimed.id)
            ends[claimed.id] += was_ours and not NEXT[now]
        elif step < 0.95:
            for kind in ("leases", "delayed"):
                for id in redis_server.command("ZRANGE", names.JOBS + kind, 0, 1):
                    move_time(redis_server, id.decode(), kind)
            await book.sweep()
        elif held:
            await book.cancel(dice.choice(held).id, "o")
        for key in redis_server.client.scan_iter(names.JOBS + "job:*"):
            id = key.decode().rsplit(":", 1)[1]
            now = await state_of(book, id)
            assert now is states.get(id, now) or _may_follow(states[id], now)
            states[id] = now
    places = {
        kind: set(redis_server.command("ZRANGE", names.JOBS + kind, 0, -1)) for kind in ("queue", "leases", "delayed")
    }
    for id, state in states.items():
        where = {kind for kind, ids in places.items() if id.encode() in ids}
        wanted = {JobState.QUEUED: {"queue"}, JobState.RUNNING: {"leases"}, JobState.WAITING: {"delayed"}}
        assert where == wanted.get(state, set()), (id, state)
    assert max(ends.values()) == 1


def _may_follow(was: JobState, now: JobState) -> bool:
    """In any number of steps."""
    reached: set[JobState] = set()
    edge = {was}
    while edge:
        edge = {following for state in edge for following in NEXT[state]} - reached
        reached |= edge
    return now in reached


async def test_who_has_many_thousands_waiting_claims_as_fast_as_who_has_few(book: JobBook) -> None:
    """No move looks at more than its own jobs: the work that Redis counts for a claim does not grow with the queue."""
    await book.submit([new("first"), new("second"), new("third")])
    few = await _work_of_a_claim(book)
    for start in range(0, 20_000, 1000):
        await book.submit([new(f"j{start + number}") for number in range(1000)])
    assert await _work_of_a_claim(book) <= few + 2


async def _work_of_a_claim(book: JobBook) -> int:
    """Commands that Redis ran for one: the fewest of three, for a connection that is made anew says more."""
    counts = [_processed(await book.store.call("INFO", "stats"))]
    for _ in range(3):
        await book.claim(1)
        counts.append(_processed(await book.store.call("INFO", "stats")))
    return min(after - before for before, after in itertools.pairwise(counts))


def _processed(info: object) -> int:
    if isinstance(info, dict):
        return int(info["total_commands_processed"])
    text = info.decode() if isinstance(info, bytes) else str(info)
    return int(text.split("total_commands_processed:")[1].split()[0])
