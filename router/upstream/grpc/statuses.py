"""How a call ended: gRPC's status codes as our errors. Knows status headers and codes; knows no frames or messages.

Which code may be tried elsewhere, and which speaks against the replica, follows from the HTTP status that it becomes:
429 and 503 are back-pressure, 500, 502 and 504 are faults, all below 500 is the request's own matter.
"""

import base64
import binascii
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import unquote

import msgspec

from router.core import Headers
from router.errors import ConnectionCut, UpstreamError, UpstreamStatus, UpstreamTimeout
from router.headers import find

_MAX_WORDS = 2000


class Code(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# HTTP's status, OpenAI's type and code.
_AS_HTTP: dict[int, tuple[int, str, str]] = {
    Code.INVALID_ARGUMENT: (400, "invalid_request_error", "invalid_argument"),
    Code.OUT_OF_RANGE: (400, "invalid_request_error", "out_of_range"),
    Code.FAILED_PRECONDITION: (400, "invalid_request_error", "failed_precondition"),
    Code.UNAUTHENTICATED: (401, "invalid_request_error", "invalid_api_key"),
    Code.PERMISSION_DENIED: (403, "invalid_request_error", "permission_denied"),
    Code.NOT_FOUND: (404, "invalid_request_error", "not_found"),
    Code.ALREADY_EXISTS: (409, "invalid_request_error", "already_exists"),
    Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "replica_overloaded"),
    Code.INTERNAL: (500, "server_error", "replica_failed"),
    Code.UNIMPLEMENTED: (501, "server_error", "not_implemented"),
    Code.UNAVAILABLE: (503, "service_unavailable", "replica_unavailable"),
}
_FAULT = (502, "upstream_error", "replica_failed")
# What a status of HTTP itself means, where something between us and the replica answered (gRPC's own table).
_OF_HTTP = {
    "400": Code.INTERNAL,
    "401": Code.UNAUTHENTICATED,
    "403": Code.PERMISSION_DENIED,
    "404": Code.UNIMPLEMENTED,
    "429": Code.UNAVAILABLE,
    "502": Code.UNAVAILABLE,
    "503": Code.UNAVAILABLE,
    "504": Code.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Status:
    """A call's end. `param` names the field at fault, where the replica said it."""

    code: int
    message: str = ""
    param: str | None = None
    retry_after_s: float | None = None


OK = Status(Code.OK)


def status_in(fields: Headers, *, is_first: bool) -> Status:
    """What a block of headers says of how the call stands: OK also where a head, the first block, says nothing."""
    said = find(fields, "grpc-status")
    if said is not None:
        if said == "0":
            return OK
        code = int(said) if said.isdecimal() and len(said) <= 3 else Code.UNKNOWN
        param, retry_after_s = _details(find(fields, "grpc-status-details-bin"))
        return Status(code, unquote(find(fields, "grpc-message") or "")[:_MAX_WORDS], param, retry_after_s)
    if not is_first:
        return Status(Code.UNKNOWN, "The replica ended its answer without a status.")
    status, kind = find(fields, ":status") or "none", find(fields, "content-type") or "none"
    if status != "200":
        return Status(_OF_HTTP.get(status, Code.UNKNOWN), f"The replica answered a call with HTTP status {status}.")
    if not kind.startswith("application/grpc"):
        return Status(Code.UNKNOWN, f"The replica answered a call with content of the type {kind}.")
    return OK


def error_of(status: Status) -> UpstreamError:
    """What such an end is to us; the replica's own words, as OpenAI's error body."""
    if status.code == Code.DEADLINE_EXCEEDED:
        return UpstreamTimeout(status.message or "The replica did not answer within the deadline.")
    if status.code in (Code.OK, Code.CANCELLED):
        return ConnectionCut(status.message or "The replica ended its answer before it was complete.")
    http_status, kind, code = _AS_HTTP.get(status.code, _FAULT)
    message = status.message or f"The replica answered with the gRPC status {status.code}."
    words = {"message": message, "type": kind, "param": status.param, "code": code}
    return UpstreamStatus(http_status, msgspec.json.encode({"error": words}), retry_after_s=status.retry_after_s)


def _details(text: str | None) -> tuple[str | None, float | None]:
    """The field at fault and how long to wait, from google.rpc's rich details."""
    if text is None:
        return None, None
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import BadRequest, RetryInfo
    from google.rpc.status_pb2 import Status as RichStatus

    param, wait_s = None, None
    try:
        rich = RichStatus.FromString(base64.b64decode(text + "=" * (-len(text) % 4)))
        for detail in rich.details:
            bad, again = BadRequest(), RetryInfo()
            if detail.Unpack(bad) and bad.field_violations:
                param = bad.field_violations[0].field
            elif detail.Unpack(again):
                wait_s = again.retry_delay.ToTimedelta().total_seconds()
    except (binascii.Error, DecodeError):
        pass
    return param, wait_s
