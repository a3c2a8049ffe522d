"""How this process speaks to replicas: its pool of connections, and around it what some replicas ask for. Composes the
upstream room over the settings; decides nothing."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from router.core import ReplicaSpec
from router.ports import Clock, Sink, TokenIds, Upstream
from router.relay import Relay
from router.upstream.http import HttpUpstream
from router.upstream.merging import MergingUpstream

if TYPE_CHECKING:
    from router.upstream.schemes import SchemeUpstream


def open_upstream(clock: Clock, specs: Iterable[ReplicaSpec], ids: TokenIds) -> "HttpUpstream | SchemeUpstream":
    """HTTP's pool itself where no replica is behind gRPC."""
    http = HttpUpstream(clock)
    if not any(spec.url.startswith("grpc") for spec in specs):
        return http
    from router.upstream.grpc.pool import GrpcUpstream  # and the contracts' messages, for those who need them
    from router.upstream.grpc.planning import Planner
    from router.upstream.schemes import SchemeUpstream

    return SchemeUpstream(http, GrpcUpstream(clock, Planner(ids)))


def with_merging(pool: Upstream, specs: Iterable[ReplicaSpec]) -> Upstream:
    """The pool itself where no replica is sent several requests as one."""
    return MergingUpstream(pool, _prompt_tokens) if any(spec.merge is not None for spec in specs) else pool


def _prompt_tokens(sink: Sink) -> int | None:
    """Of the request behind it; None where their number is a guess."""
    lease = sink.lease if isinstance(sink, Relay) else None
    prompt = None if lease is None else lease.demand.prompt
    return prompt.num_tokens if prompt is not None and prompt.is_exact else None
