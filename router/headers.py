"""Which headers pass, each way. Knows header names; knows nothing of sockets or of why a replica was chosen."""

import re
import secrets

from router.core import Headers, Lease, ReplicaSpec

_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    "upgrade http2-settings".split()
)
# Never a replica's business: our framing, and what the client showed to us alone.
_KEPT_FROM_REPLICA = _HOP_BY_HOP | frozenset("host content-length accept-encoding expect cookie".split())
_CREDENTIALS = frozenset(("authorization", "x-api-key", "api-key"))
_KEPT_FROM_CLIENT = _HOP_BY_HOP | frozenset(("server", "date", "x-request-id"))
_KEPT_FROM_STREAMS = ("content-length", "cache-control", "x-accel-buffering")
_SANE_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


def request_id(headers: Headers) -> str:
    """The client's own id if it sent a sane one, else a new one."""
    for name in ("x-request-id", "x-client-request-id"):
        value = find(headers, name)
        if value and _SANE_ID.fullmatch(value):
            return value
    return "req-" + secrets.token_hex(12)


def find(headers: Headers, name: str) -> str | None:
    return next((value for key, value in headers if key == name), None)


def to_replica(headers: Headers, spec: ReplicaSpec, id: str, *, forward_credentials: bool) -> Headers:
    """What a replica is sent besides host and length. The replica's own key wins over a forwarded one."""
    dropped = _KEPT_FROM_REPLICA | _listed_as_hops(headers) | {"x-request-id"}
    if spec.api_key or not forward_credentials:
        dropped |= _CREDENTIALS
    passed = [(name, value) for name, value in headers if name not in dropped]
    if find(passed, "content-type") is None:
        passed.append(("content-type", "application/json"))
    if spec.api_key:
        passed.append(("authorization", f"Bearer {spec.api_key}"))
    return [*passed, ("x-request-id", id)]


def to_client(headers: Headers, lease: Lease, *, is_stream: bool) -> Headers:
    """A replica's answer head as the client sees it: its own, with who answered and why."""
    dropped = _KEPT_FROM_CLIENT | _listed_as_hops(headers)
    passed = [(name, value) for name, value in headers if name not in dropped]
    if is_stream:
        passed = [*(item for item in passed if item[0] not in _KEPT_FROM_STREAMS), *STREAM_HEADERS]
    return [*passed, *explained(lease)]


STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


def explained(lease: Lease) -> Headers:
    return (
        ("x-request-id", lease.demand.request.id),
        ("x-pointsman-replica", lease.replica.id),
        ("x-pointsman-reason", lease.decision.reason),
    )


def is_event_stream(headers: Headers) -> bool:
    return (find(headers, "content-type") or "").startswith("text/event-stream")


def _listed_as_hops(headers: Headers) -> set[str]:
    """Names that Connection headers declare to be for this hop only."""
    listed = ",".join(value for name, value in headers if name == "connection")
    return {token.strip().lower() for token in listed.split(",")}
