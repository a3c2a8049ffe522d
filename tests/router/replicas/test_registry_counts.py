"""The registry's counts of open leases, whatever probes, reports and endings come."""

import asyncio
import random
import time

from router.core import Lease, Outcome, Pool, Replica
from router.errors import ConnectionCut
from router.replicas.registry import Registry
from tests.router.nouns import make_demand
from tests.router.replicas.fakes import FakeReplica, Fleet, Listener, make_decision, make_registry, running


def soon() -> float:
    return time.monotonic() + 20.0


def only(registry: Registry) -> Replica:
    (replica,) = registry.replicas()
    return replica


def available(registry: Registry, pool: Pool) -> set[str]:
    return {replica.id for replica in registry.available(pool, registry.clock())}


def reserve(registry: Registry, replica: Replica, tokens: int = 100) -> Lease:
    return registry.reserve(make_demand(pool=replica.pool), make_decision(replica, tokens))


async def until_available(listener: Listener, registry: Registry, pool: Pool, *replicas: FakeReplica) -> None:
    await listener.until(lambda: available(registry, pool) == {replica.id for replica in replicas})


async def test_probes_and_reports_never_touch_the_in_flight_count() -> None:
    """Pitfall: two writers of one count, where a health check resets it."""
    listener = Listener()
    async with FakeReplica("m") as replica:
        replica.answers["/metrics"] = (200, "vllm:num_requests_running 7\nvllm:num_requests_waiting 0\n")
        async with running(make_registry(listener, Fleet(replica))) as registry:
            pool, _ = await registry.known("m", soon())
            await until_available(listener, registry, pool, replica)
            leases = [reserve(registry, only(registry)) for _ in range(3)]
            await replica.until_asked("/metrics", times=4)
            assert (only(registry).in_flight, only(registry).foreign_requests) == (3, 4)
            await replica.die()
            await listener.until(lambda: f"lost {replica.id}" in listener.log)
            assert (only(registry).in_flight, only(registry).foreign_requests) == (3, 0)
            await replica.return_()
            await until_available(listener, registry, pool, replica)
            assert only(registry).in_flight == 3
            for lease in leases:
                lease.release(Outcome.OK)
            assert only(registry).in_flight == 0


async def test_ten_thousand_random_requests_leave_every_count_at_zero() -> None:
    """Pitfall: in-flight counts leak on error or disconnect. One lease per dispatch, released once on every exit."""
    dice = random.Random(5)
    listener = Listener()
    async with (
        FakeReplica("m") as first,
        FakeReplica("m") as second,
        running(make_registry(listener, Fleet(first, second), breaker_open_s=0.0)) as registry,
    ):
        pool, _ = await registry.known("m", soon())
        await until_available(listener, registry, pool, first, second)
        open_leases: list[Lease] = []
        for step in range(10_000):
            candidates = registry.available(pool, registry.clock())
            if candidates and dice.random() < 0.5:
                open_leases.append(reserve(registry, dice.choice(candidates), dice.randrange(1000)))
            elif open_leases and dice.random() < 0.3:
                dice.choice(open_leases).start()
            elif open_leases:
                lease = open_leases.pop(dice.randrange(len(open_leases)))
                lease.release(dice.choice(list(Outcome)), dice.choice([None, ConnectionCut("cut")]))
            assert sum(replica.in_flight for replica in registry.replicas()) == len(open_leases)
            if step % 500 == 0:
                await asyncio.sleep(0)
        while open_leases:
            open_leases.pop().abandon(asyncio.CancelledError())
        for replica in registry.replicas():
            assert (replica.in_flight, replica.prefilling, replica.prefilling_tokens) == (0, 0, 0)
        await until_available(listener, registry, pool, first, second)
