"""What operators see of a running router: readiness, the replica table, the gauges. Reads the rooms; changes only
whether a replica drains."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from router.core import Pool, Replica, ReplicaState
from router.prefix.indexer import Indexer, instances_of
from router.replicas.registry import Registry
from router.telemetry.metrics import Labels
from router.transports.web import UnknownReplica
from router.workers import warming
from router.workers.frames import Family, Report

if TYPE_CHECKING:
    from router.app import Router


def readiness(router: "Router") -> tuple[bool, Mapping[str, object]]:
    """Ready: not draining, some replica ready, and no tokenizer still loading."""
    replicas = router.registry.replicas()
    num_ready = sum(replica.state is ReplicaState.READY for replica in replicas)
    is_draining = router.gate.is_draining
    detail = {
        "draining": is_draining,
        "replicas_ready": num_ready,
        "replicas_total": len(replicas),
        "loading_tokenizer": router.is_loading,
        "store": router.commons.status,
        "knowledge": {replica.id: _known(router, replica) for replica in replicas},
    }
    return num_ready > 0 and not is_draining and not router.is_loading, detail


def _known(router: "Router", replica: Replica) -> str:
    """How well we know what this replica has cached, and why not better."""
    known = router.caches.knowledge.of(replica)
    return f"{known.knowing}: {known.reason}" if known.reason else known.knowing


def indexer(router: "Router") -> Indexer:
    """What this process knows of caches, for others to ask."""
    return Indexer.over(router.index, lambda: instances_of(replica_rows(router)), router.settings.index_bytes)


async def export(router: "Router") -> bytes:
    """What this process knows of caches, for a router that begins."""
    return warming.export(router.index, [replica.id for replica in router.registry.replicas()])


async def lessons(router: "Router") -> bytes:
    """What this process has learned of replicas, likewise."""
    return warming.pack_lessons(router.learning.lessons.all(time.monotonic()))


def replica_rows(router: "Router") -> Sequence[Mapping[str, object]]:
    speeds = router.learning.shown()
    return [_row(router, replica, speeds[replica.id]) for replica in router.registry.replicas()]


def _row(router: "Router", replica: Replica, speed: Mapping[str, object]) -> Mapping[str, object]:
    load = replica.load
    return {
        "id": replica.id,
        "url": replica.spec.url,
        "state": replica.state.value,
        "breaker": router.registry.breaker_state(replica.id),
        "models": [*replica.models, *sorted(replica.adapters)],
        "in_flight": replica.in_flight,
        "running": load.running if load else None,
        "waiting": load.waiting if load else None,
        "kv_used_ratio": load.kv_used_ratio if load else None,
        "cached_blocks": router.index.num_blocks(replica.id),
        "block_size": replica.pool.block_size if replica.pool is not None else None,
        "expected_wait_s": round(replica.expected_wait_s, 4),
        "round_trip_s": router.registry.round_trip_s(replica.id),
        "prefill_tokens_per_s": round(replica.prefill_tokens_per_s, 1),
        **speed,
        "knowledge": _known(router, replica),
        "adapters": router.adapters.shown(replica.id),
    }


def is_there(registry: Registry, pool: Pool) -> bool:
    """Is one of its replicas ready, or asleep: then whoever waits for it wakes it."""
    there = (ReplicaState.READY, ReplicaState.ASLEEP)
    return any(replica.pool is pool and replica.state in there for replica in registry.replicas())


def set_draining(registry: Registry, id: str, on: bool) -> None:
    """Raises UnknownReplica."""
    try:
        registry.drain(id) if on else registry.undrain(id)
    except LookupError:
        known = ", ".join(replica.id for replica in registry.replicas())
        raise UnknownReplica(f"There is no replica `{id}`; there are: {known}.", param="id") from None


def report(router: "Router") -> Report:
    """All of it, for a supervisor to add up."""
    is_ready, detail = readiness(router)
    families = [
        Family(
            family.name,
            family.type,
            family.documentation,
            [(sample.name, sample.labels, float(sample.value)) for sample in family.samples],
        )
        for family in router.metrics.collect()
    ]
    return Report(is_ready, detail, replica_rows(router), router.models(), families)


def add_gauges(router: "Router") -> None:
    """Everything that is read on scrape."""
    add, replicas = router.metrics.add_gauge, router.registry.replicas
    by_replica, none = ("replica",), ()

    def each(value: str) -> "Sequence[tuple[Labels, float]]":
        return [((replica.id,), float(getattr(replica, value))) for replica in replicas()]

    add("pointsman_replica_in_flight", "Open leases.", by_replica, lambda: each("in_flight"))
    add("pointsman_replica_expected_wait_seconds", "Before a prefill.", by_replica, lambda: each("expected_wait_s"))
    add("pointsman_replica_round_trip_seconds", "As decisions count it.", by_replica, lambda: each("round_trip_s"))
    add("pointsman_replica_prefill_tokens_per_second", "Learned.", by_replica, lambda: each("prefill_tokens_per_s"))
    add(
        "pointsman_replica_speed_source",
        "1 for where its speed is from: own samples, a sibling's, or a prior guess.",
        ("replica", "source"),
        router.learning.sources,
    )
    lessons = router.learning.lessons
    refused = "What siblings learned and was not believed: stale, absurd, or of another model."
    add("pointsman_lessons_refused", refused, none, lambda: [((), float(lessons.num_refused))])
    add("pointsman_replica_state", "1 for the state it is in.", ("replica", "state"), lambda: _states(replicas()))
    add(
        "pointsman_replica_knowledge",
        "1 for how its cache is known: EXACT, APPROXIMATE or BLIND.",
        ("replica", "knowledge"),
        lambda: [((replica.id, router.caches.knowledge.of(replica).knowing), 1.0) for replica in replicas()],
    )
    reuse = ("replica", "kind")
    add("pointsman_prefix_reuse_tokens", "Cached tokens, expected and reported.", reuse, lambda: _reuse(router))
    add(
        "pointsman_replica_adapters",
        "Adapters wanted there, by where they stand.",
        ("replica", "state"),
        lambda: router.adapters.counts(),
    )
    add("pointsman_replica_blocks", "KV blocks held there.", by_replica, lambda: _blocks(router, replicas()))
    add("pointsman_index_blocks", "KV blocks in the prefix index.", none, lambda: [((), router.index.total_blocks)])
    add("pointsman_index_bytes", "Bytes of the prefix index.", none, lambda: [((), router.index.num_bytes)])
    add("pointsman_queue_waiting", "Requests waiting for a replica.", none, lambda: [((), router.queue.num_waiting)])
    unready = router.queue.unready_waiting
    add(
        "pointsman_unready_waiting",
        "Requests that wait for a model none of whose replicas is ready: start or wake one.",
        ("model",),
        lambda: [((model,), float(count)) for model, count in unready().items()],
    )
    store = router.commons.store
    if store is not None:
        add("pointsman_store_up", "1 while queues and limits are shared.", none, lambda: [((), float(store.is_up))])
        add("pointsman_store_losses", "How often the store was lost.", none, lambda: [((), float(store.num_losses))])
    add("pointsman_open_requests", "Requests in this process.", none, lambda: [((), router.gate.num_open)])
    add("pointsman_loop_lag_seconds", "How late the event loop was.", none, lambda: [((), router.lag_s)])


def _reuse(router: "Router") -> Sequence[tuple[Labels, float]]:
    return [
        ((id, kind), float(tokens))
        for id, reuse in router.caches.knowledge.reuse().items()
        for kind, tokens in (("expected", reuse.expected_tokens), ("reported", reuse.reported_tokens))
    ]


def _blocks(router: "Router", replicas: Sequence[Replica]) -> Sequence[tuple[Labels, float]]:
    return [((replica.id,), float(router.index.num_blocks(replica.id))) for replica in replicas]


def _states(replicas: Sequence[Replica]) -> Sequence[tuple[Labels, float]]:
    return [
        ((replica.id, state.value), float(replica.state is state)) for replica in replicas for state in ReplicaState
    ]
