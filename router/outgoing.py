"""How this process speaks to replicas: its pool of connections, and around it what some replicas ask for, those with
roles included. Composes the upstream room, and the choice of pairs, over the settings; decides nothing."""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING

from router.config import ConfigError, Settings
from router.core import Decision, Demand, Lease
from router.handover import Handovers
from router.ports import Clock, Policy, PrefixIndex, Sink, TokenIds, Upstream
from router.prefix.caches import Caches
from router.relay import Relay
from router.retries import RetryBudget
from router.routing.moving import Moving
from router.routing.splitting import Splitting
from router.spec import ReplicaSpec
from router.telemetry.metrics import Metrics
from router.upstream.handover import HandoverUpstream
from router.upstream.handshakes import can_split
from router.upstream.http import HttpUpstream
from router.upstream.merging import MergingUpstream

if TYPE_CHECKING:
    from router.upstream.schemes import SchemeUpstream


def open_upstream(clock: Clock, specs: Iterable[ReplicaSpec], ids: TokenIds) -> "HttpUpstream | SchemeUpstream":
    """HTTP's pool itself where no replica is behind gRPC."""
    http = HttpUpstream(clock)
    if not any(spec.url.startswith("grpc") for spec in specs):
        return http
    from router.upstream.grpc.planning import Planner
    from router.upstream.grpc.pool import GrpcUpstream  # and the contracts' messages, for those who need them
    from router.upstream.schemes import SchemeUpstream

    return SchemeUpstream(http, GrpcUpstream(clock, Planner(ids)))


def with_merging(pool: Upstream, specs: Iterable[ReplicaSpec], metrics: Metrics) -> Upstream:
    """The pool itself where no replica is sent several requests as one."""
    if not any(spec.merge is not None for spec in specs):
        return pool

    def count(replica_id: str, num_requests: int) -> None:
        metrics.merged_calls.add((replica_id,))
        metrics.merged_requests.add((replica_id,), num_requests)

    return MergingUpstream(pool, _prompt_tokens, count)


def with_handovers(upstream: Upstream, handovers: Handovers | None) -> Upstream:
    return upstream if handovers is None else HandoverUpstream(upstream, handovers.plan_of)


def open_handovers(
    settings: Settings,
    policy: Policy,
    reserve: Callable[[Demand, Decision], Lease],
    index: PrefixIndex,
    budget: RetryBudget,
    metrics: Metrics,
    caches: Caches,
) -> tuple[Policy, Handovers]:
    """Where replicas have roles: the policy that also chooses pairs, and who takes both leases. Raises ConfigError."""
    try:
        moving = Moving(settings.kv_transfer_token_s)
    except ValueError:
        raise ConfigError("The setting `kv_transfer_token_s` must be more than 0.") from None
    splitting = Splitting(policy, can_split, moving, settings.max_in_flight)
    failed, answered = caches.learners()
    handovers = Handovers(
        reserve=reserve,
        index=index,
        budget=budget,
        clock=monotonic,
        moving=moving,
        pause=splitting.pause,
        metrics=metrics,
        failed=failed,
        answered=answered,
        forwards_credentials=settings.forward_authorization,
    )
    return splitting, handovers


def _prompt_tokens(sink: Sink) -> int | None:
    """Of the request behind it; None where their number is a guess."""
    lease = sink.lease if isinstance(sink, Relay) else None
    prompt = None if lease is None else lease.demand.prompt
    return prompt.num_tokens if prompt is not None and prompt.is_exact else None
