"""How this process speaks to replicas: its pool of connections, and around it what some replicas ask for. Composes the
upstream room over the settings; decides nothing."""

from collections.abc import Iterable

from router.core import ReplicaSpec
from router.ports import Sink, Upstream
from router.relay import Relay
from router.upstream.merging import MergingUpstream


def with_merging(pool: Upstream, specs: Iterable[ReplicaSpec]) -> Upstream:
    """The pool itself where no replica is sent several requests as one."""
    return MergingUpstream(pool, _prompt_tokens) if any(spec.merge is not None for spec in specs) else pool


def _prompt_tokens(sink: Sink) -> int | None:
    """Of the request behind it; None where their number is a guess."""
    lease = sink.lease if isinstance(sink, Relay) else None
    prompt = None if lease is None else lease.demand.prompt
    return prompt.num_tokens if prompt is not None and prompt.is_exact else None
