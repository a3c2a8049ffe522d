import asyncio
import time
from dataclasses import replace

import pytest

from router.core import Lease, Outcome, Pool, Replica, ReplicaState
from router.errors import ConnectionCut, NoReplica, UnknownModel, UpstreamError, UpstreamStatus
from router.replicas.registry import Registry
from router.spec import ReplicaSpec
from router.steps import StepModel
from tests.router.nouns import FakeClock, make_demand
from tests.router.replicas.fakes import FakeReplica, Fleet, Listener, make_decision, make_registry, running
from tests.router.replicas.test_lessons import SLOW, see

FOREVER_S = 3600.0


def soon() -> float:
    return time.monotonic() + 20.0


def only(registry: Registry) -> Replica:
    (replica,) = registry.replicas()
    return replica


def available(registry: Registry, pool: Pool) -> set[str]:
    return {replica.id for replica in registry.available(pool, registry.clock())}


def reserve(registry: Registry, replica: Replica, tokens: int = 100) -> Lease:
    return registry.reserve(make_demand(pool=replica.pool), make_decision(replica, tokens))


def fail(registry: Registry, replica: Replica, error: UpstreamError) -> None:
    reserve(registry, replica).release(Outcome.UPSTREAM_FAILED, error)


async def until_available(listener: Listener, registry: Registry, pool: Pool, *replicas: FakeReplica) -> None:
    await listener.until(lambda: available(registry, pool) == {replica.id for replica in replicas})


async def test_it_starts_empty_and_serves_at_once() -> None:
    """Pitfall: start-up waits for all replicas, so one dead replica stops it."""
    listener = Listener()
    registry = make_registry(listener)
    assert repr(registry) == "<Registry empty>"
    assert registry.models() == []
    with pytest.raises(UnknownModel):
        registry.resolve("m")


async def test_one_dead_and_one_hanging_replica_delay_nobody() -> None:
    """Pitfall: one dead replica makes /v1/models fail, or start-up waits for all."""
    listener = Listener()
    async with FakeReplica("m") as good, FakeReplica("m") as hanging, FakeReplica("m") as dead:
        hanging.hanging.add("/health")
        await dead.die()
        async with running(make_registry(listener, Fleet(dead, hanging, good), probe_timeout_s=FOREVER_S)) as registry:
            pool, adapter = await registry.known("m", soon())
            assert adapter is None
            await until_available(listener, registry, pool, good)
            assert [entry["id"] for entry in registry.models()] == ["m"]
            assert repr(registry) == "<Registry 2 STARTING, 1 READY>"


async def test_what_a_replica_serves_is_told_with_its_tokenizer() -> None:
    listener = Listener()
    document = {"tokenizer": {}, "block_size": 32}
    async with FakeReplica("m") as ours, FakeReplica("other") as foreign:
        ours.answers["/pointsman/tokenizer"] = (200, document)
        async with running(make_registry(listener, Fleet(ours, foreign))) as registry:
            await listener.until(lambda: len(listener.documents) == 2)
            assert listener.documents == {ours.id: document | {"tokenizer": "{}"}, foreign.id: None}
            assert {(pool.model, pool.block_size) for pool in registry.pools()} == {("m", 32), ("other", 32)}


async def test_a_killed_replica_is_lost_at_the_first_failed_request_and_back_at_its_first_good_probe() -> None:
    """Pitfall: a replica that fails is never probed again. It serves again within two probe intervals of its return."""
    listener = Listener()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica))) as registry:
        pool, _ = await registry.known("m", soon())
        await until_available(listener, registry, pool, replica)
        await replica.die()
        fail(registry, only(registry), ConnectionCut("cut"))
        await listener.until(lambda: f"lost {replica.id}" in listener.log)
        assert repr(only(registry)) == f"<Replica {replica.id} FAILED 0 in flight>"
        assert available(registry, pool) == set()
        assert not registry.has_ready(pool, frozenset())
        assert [entry["id"] for entry in registry.models()] == ["m"], "names are stable while it is briefly down"
        await replica.return_()
        await until_available(listener, registry, pool, replica)
        assert listener.log.count(f"identified {replica.id} in m") == 2


async def test_a_replica_that_returns_serves_though_its_breaker_was_open_for_long() -> None:
    listener = Listener()
    async with (
        FakeReplica("m") as replica,
        running(make_registry(listener, Fleet(replica), breaker_open_s=FOREVER_S)) as registry,
    ):
        pool, _ = await registry.known("m", soon())
        await until_available(listener, registry, pool, replica)
        await replica.die()
        for _ in range(3):
            fail(registry, only(registry), ConnectionCut("cut"))
        await listener.until(lambda: f"lost {replica.id}" in listener.log)
        await replica.return_()
        await until_available(listener, registry, pool, replica)


async def test_a_failed_request_triggers_the_probe() -> None:
    listener = Listener()
    async with (
        FakeReplica("m") as replica,
        running(make_registry(listener, Fleet(replica), probe_interval_s=FOREVER_S)) as registry,
    ):
        pool, _ = await registry.known("m", soon())
        await until_available(listener, registry, pool, replica)
        await replica.die()
        fail(registry, only(registry), ConnectionCut("cut"))
        await listener.until(lambda: f"lost {replica.id}" in listener.log)


async def test_a_replica_that_returns_with_another_model_moves_to_its_pool() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica))) as registry:
        pool, _ = await registry.known("m", soon())
        await until_available(listener, registry, pool, replica)
        await replica.die()
        await listener.until(lambda: f"lost {replica.id}" in listener.log)
        replica.serve("other", adapters={})
        await replica.return_()
        other, _ = await known_later(listener, registry, "other")
        await until_available(listener, registry, other, replica)
        assert available(registry, pool) == set()
        with pytest.raises(UnknownModel):
            registry.resolve("m")


async def test_a_base_model_swapped_in_place_voids_what_was_cached_and_learned() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica))) as registry:
        await registry.known("m", soon())
        (member,) = registry.members()
        see(member, SLOW, 20)
        replica.serve("other", adapters={})
        await known_later(listener, registry, "other")
        assert f"lost {replica.id}" in listener.log
        assert member.replica.step == StepModel(), "and what was learned of its speed"


async def known_later(listener: Listener, registry: Registry, model: str) -> tuple[Pool, str | None]:
    await listener.until(lambda: model in {entry["id"] for entry in registry.models()})
    return registry.resolve(model)


async def test_adapters_appear_once_they_are_loaded() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica))) as registry:
        pool, _ = await registry.known("m", soon())
        replica.serve("m", adapters={"sql": "m"})
        assert await known_later(listener, registry, "sql") == (pool, "sql")


async def test_what_is_missing_from_discovery_is_gone_and_its_open_leases_end_normally() -> None:
    """Pitfall: deleted pods keep traffic. The full list is asked for again and again; what it lacks is gone."""
    listener = Listener()
    async with FakeReplica("m") as stays, FakeReplica("m") as goes:
        fleet = Fleet(stays, goes)
        async with running(make_registry(listener, fleet)) as registry:
            pool, _ = await registry.known("m", soon())
            await until_available(listener, registry, pool, stays, goes)
            leaving = next(replica for replica in registry.replicas() if replica.id == goes.id)
            lease = reserve(registry, leaving)
            fleet.specs = [stays.spec]
            await listener.until(lambda: f"lost {goes.id}" in listener.log)
            assert available(registry, pool) == {stays.id}
            assert [replica.id for replica in registry.replicas()] == [stays.id]
            assert repr(leaving) == f"<Replica {goes.id} DRAINING 1 in flight>"
            lease.start()
            lease.release(Outcome.OK)
            assert leaving.in_flight == 0
            asked = goes.asked.total()
            await stays.until_asked("/health", times=5)
            assert goes.asked.total() <= asked + 1, "its loops have ended; one question may have been on its way"


async def test_a_replica_that_comes_later_serves() -> None:
    listener = Listener()
    async with FakeReplica("m") as first, FakeReplica("m") as second:
        fleet = Fleet(first)
        async with running(make_registry(listener, fleet)) as registry:
            pool, _ = await registry.known("m", soon())
            fleet.specs = [first.spec, second.spec]
            await until_available(listener, registry, pool, first, second)


async def test_a_discovery_that_fails_changes_nothing() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica:
        fleet = Fleet(replica)
        async with running(make_registry(listener, fleet)) as registry:
            pool, _ = await registry.known("m", soon())
            await until_available(listener, registry, pool, replica)
            fleet.error = OSError("no api server")
            await replica.until_asked("/health", times=5)
            assert available(registry, pool) == {replica.id}


async def test_a_replica_under_a_new_key_keeps_its_counts() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica:
        fleet = Fleet(replica)
        async with running(make_registry(listener, fleet)) as registry:
            pool, _ = await registry.known("m", soon())
            await until_available(listener, registry, pool, replica)
            lease = reserve(registry, only(registry))
            fleet.specs = [replace(replica.spec, api_key="k")]
            await replica.until(lambda: "Bearer k" in replica.keys)
            assert only(registry).in_flight == 1
            assert f"lost {replica.id}" not in listener.log
            lease.release(Outcome.OK)


async def test_an_unknown_model_is_refused_at_once_when_all_replicas_have_said_theirs() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica))) as registry:
        await registry.known("m", soon())
        with pytest.raises(UnknownModel, match=r"The model `nope` does not exist\. Known models: m\."):
            await registry.known("nope", time.monotonic() + FOREVER_S)


async def test_an_unknown_model_waits_while_a_replica_may_still_bring_it() -> None:
    listener = Listener()
    async with FakeReplica("m") as first, FakeReplica("late") as late:
        late.hanging.add("/v1/models")
        async with running(make_registry(listener, Fleet(first, late), identify_timeout_s=0.05)) as registry:
            await registry.known("m", soon())
            waiting = asyncio.create_task(registry.known("late", soon()))
            await late.until_asked("/v1/models", times=2)
            assert not waiting.done()
            late.hanging.clear()
            pool, _ = await waiting
            assert pool.model == "late"


async def test_an_unknown_model_of_a_silent_fleet_is_no_replica_at_the_deadline() -> None:
    registry = make_registry(Listener())
    with pytest.raises(NoReplica) as caught:
        await registry.known("m", registry.clock() + 0.01)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
    registry.reconcile([ReplicaSpec("http://a:1")])
    with pytest.raises(NoReplica):
        await registry.known("m", registry.clock() - 1.0)


async def test_a_wait_for_a_model_ends_when_the_last_unidentified_replica_goes() -> None:
    registry = make_registry(Listener())
    registry.reconcile([ReplicaSpec("http://a:1")])
    waiting = asyncio.create_task(registry.known("m", soon()))
    await asyncio.sleep(0)
    registry.reconcile([])
    with pytest.raises(UnknownModel):
        await waiting


async def test_a_wait_for_a_model_can_be_cancelled() -> None:
    registry = make_registry(Listener())
    waiting = asyncio.create_task(registry.known("m", soon()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("status", [429, 503])
async def test_a_pushed_back_replica_cools_down_and_who_waits_is_told_when_it_has(status: int) -> None:
    """Pitfall: 429 and 503 open the breaker. They are back-pressure: cool down, honour Retry-After, come back."""
    listener = Listener()
    clock = FakeClock()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica), clock=clock)) as registry:
        pool, _ = await registry.known("m", clock.now + 20)
        await until_available(listener, registry, pool, replica)
        fail(registry, only(registry), UpstreamStatus(status, b"", retry_after_s=0.05))
        assert available(registry, pool) == set()
        assert registry.has_ready(pool, frozenset()), "it is there, only not now"
        assert not registry.has_ready(pool, frozenset({replica.id}))
        num_changes = listener.log.count("change")
        clock.now += 0.05
        await listener.until(lambda: listener.log.count("change") > num_changes)
        assert available(registry, pool) == {replica.id}
        assert only(registry).state is ReplicaState.READY


async def test_half_open_lets_one_request_through_and_its_success_lets_all() -> None:
    """Pitfall: half-open admits everybody, or nobody ever again."""
    listener = Listener()
    clock = FakeClock()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica), clock=clock)) as registry:
        pool, _ = await registry.known("m", clock.now + 20)
        await until_available(listener, registry, pool, replica)
        for _ in range(3):
            fail(registry, only(registry), UpstreamStatus(500, b""))
        assert available(registry, pool) == set()
        assert registry.breaker_state(replica.id) == "open"
        clock.now += 0.02
        await until_available(listener, registry, pool, replica)
        trial = reserve(registry, only(registry))
        assert available(registry, pool) == set()
        trial.release(Outcome.CLIENT_GONE)
        assert available(registry, pool) == {replica.id}, "a trial that told nothing makes room for another"
        trial = reserve(registry, only(registry))
        num_changes = listener.log.count("change")
        trial.start()
        assert listener.log.count("change") == num_changes + 1
        assert available(registry, pool) == {replica.id}
        reserve(registry, only(registry)).release(Outcome.OK)
        assert available(registry, pool) == {replica.id}
        trial.release(Outcome.OK)


async def test_a_drained_replica_gets_nothing_new_and_serves_again_when_undrained() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica, running(make_registry(listener, Fleet(replica))) as registry:
        pool, _ = await registry.known("m", soon())
        await until_available(listener, registry, pool, replica)
        lease = reserve(registry, only(registry))
        registry.drain(replica.id)
        assert available(registry, pool) == set()
        assert not registry.has_ready(pool, frozenset())
        lease.release(Outcome.OK)
        assert repr(only(registry)) == f"<Replica {replica.id} DRAINING 0 in flight>"
        registry.undrain(replica.id)
        await until_available(listener, registry, pool, replica)
        assert f"lost {replica.id}" not in listener.log


async def test_a_drain_of_nobody_says_who_there_is() -> None:
    registry = make_registry(Listener())
    registry.reconcile([ReplicaSpec("http://a:1")])
    with pytest.raises(LookupError, match="there is no replica b:1; there are a:1"):
        registry.drain("b:1")


async def test_a_cancelled_registry_leaves_no_task_behind_and_still_counts() -> None:
    listener = Listener()
    async with FakeReplica("m") as replica:
        before = asyncio.all_tasks()
        async with running(make_registry(listener, Fleet(replica), cooldown_s=FOREVER_S)) as registry:
            pool, _ = await registry.known("m", soon())
            await until_available(listener, registry, pool, replica)
            fail(registry, only(registry), UpstreamStatus(429, b""))
        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not {name for name in left if name.startswith(("probe", "load"))}
        lease = reserve(registry, only(registry))
        lease.release(Outcome.OK)
        assert only(registry).in_flight == 0
