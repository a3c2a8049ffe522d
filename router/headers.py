"""Which headers pass, each way. Knows header names; knows nothing of sockets or of why a replica was chosen."""

import itertools
import re
import secrets
from functools import lru_cache

from router.core import Headers, Lease, Whereabouts

_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    "upgrade http2-settings".split()
)
# Never a replica's business: our framing, and what the client showed to us alone.
_KEPT_FROM_REPLICA = _HOP_BY_HOP | frozenset(
    "host content-length accept-encoding expect cookie x-request-id x-pointsman-priority x-pointsman-tenant "
    "x-pointsman-timeout x-request-timeout x-llm-d-inference-objective x-gateway-inference-objective "
    "x-dynamo-meta-policy-class x-llm-d-inference-fairness-id x-gateway-inference-fairness-id "
    "x-slo-ttft-ms x-slo-tpot-ms x-llm-d-slo-ttft-ms x-llm-d-slo-tpot-ms".split()
)
# All that an outside provider is told.
TO_PROVIDERS = frozenset(("accept", "authorization", "content-type", "user-agent"))
_CREDENTIALS = frozenset(("authorization", "x-api-key", "api-key"))
# Ours to say, also where a replica is another router; and what a provider says to whose key it is.
_KEPT_FROM_CLIENT = _HOP_BY_HOP | frozenset(
    "server date x-request-id set-cookie openai-organization openai-project "
    "x-pointsman-replica x-pointsman-reason x-pointsman-queue-ms".split()
)
_KEPT_FROM_STREAMS = frozenset(("cache-control", "x-accel-buffering"))
# Ids that are new in every process, without asking the kernel for randomness each time.
_PROCESS = secrets.token_hex(8)
_numbers = itertools.count(1)
_SANE_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


def request_id(headers: Headers) -> str:
    """The client's own id if it sent a sane one, else a new one."""
    return sane_id(headers) or new_id()


def sane_id(headers: Headers) -> str | None:
    """The client's own, if that can be passed on."""
    for name in ("x-request-id", "x-client-request-id"):
        value = find(headers, name)
        if value and _SANE_ID.fullmatch(value):
            return value
    return None


def new_id() -> str:
    return f"req-{_PROCESS}-{next(_numbers):x}"


def find(headers: Headers, name: str) -> str | None:
    for key, value in headers:
        if key == name:
            return value
    return None


@lru_cache(maxsize=1024)
def to_replica(headers: Headers, api_key: str | None, *, forwards_credentials: bool) -> Headers:
    """What a replica is sent besides host, length and id. The replica's own key wins over a forwarded one."""
    dropped = _KEPT_FROM_REPLICA | _listed_as_hops(headers)
    if api_key or not forwards_credentials:
        dropped |= _CREDENTIALS
    passed = [(name, value) for name, value in headers if name not in dropped]
    if find(headers, "content-type") is None:
        passed.append(("content-type", "application/json"))
    if api_key:
        passed.append(("authorization", f"Bearer {api_key}"))
    return tuple(passed)


@lru_cache(maxsize=1024)
def to_client(headers: Headers, *, is_stream: bool) -> Headers:
    """A replica's answer head as the client sees it, besides what is `own` to this answer."""
    dropped = _KEPT_FROM_CLIENT | _listed_as_hops(headers)
    if not is_stream:
        return tuple(pair for pair in headers if pair[0] not in dropped)
    return *(pair for pair in headers if pair[0] not in dropped | _KEPT_FROM_STREAMS), *STREAM_HEADERS


JSON: Headers = (("content-type", "application/json"),)
STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
EARLY_STREAM: Headers = (("content-type", "text/event-stream; charset=utf-8"), *STREAM_HEADERS)


def own(lease: Lease) -> Headers:
    """Who answered this request, and why."""
    return (
        ("x-request-id", lease.demand.request.id),
        ("x-pointsman-replica", lease.replica.id),
        ("x-pointsman-reason", lease.decision.reason),
    )


def waiting(place: Whereabouts | None) -> Headers:
    """Where a request stands in line, for who waits with it."""
    if place is None:
        return ()
    position = ("x-pointsman-queue-position", str(place.position))
    return (position,) if place.eta_s is None else (position, ("x-pointsman-queue-eta-ms", f"{place.eta_s * 1e3:.0f}"))


def is_event_stream(headers: Headers) -> bool:
    return (find(headers, "content-type") or "").startswith("text/event-stream")


def _listed_as_hops(headers: Headers) -> set[str]:
    """Names that Connection headers declare to be for this hop only."""
    listed = ",".join(value for name, value in headers if name == "connection")
    return {token.strip().lower() for token in listed.split(",")}
