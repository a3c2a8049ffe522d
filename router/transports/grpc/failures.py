"""Our errors as gRPC statuses with details. Knows both worlds' codes; knows nothing of calls.

Details are google.rpc messages: ErrorInfo has the code of the HTTP port's error body, BadRequest the field, RetryInfo
when to try again.
"""

from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from router.core import Outcome
from router.errors import PointsmanError
from router.transports.chunks import Failure

DOMAIN = "pointsman"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_CHARS = 2000

_BY_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_BY_TYPE = {
    "invalid_request_error": grpc.StatusCode.INVALID_ARGUMENT,
    "rate_limit_error": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "timeout_error": grpc.StatusCode.DEADLINE_EXCEEDED,
    "server_error": grpc.StatusCode.INTERNAL,
}


@dataclass(eq=False, slots=True)
class CallFailed(Exception):
    """How a call ends that fails. `retry_after_s` where another try may help."""

    status: grpc.StatusCode
    message: str
    code: str | None = None
    field: str | None = None
    retry_after_s: float | None = None

    @property
    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        return ((DETAILS_KEY, _details(self).SerializeToString()),)


def of_error(error: PointsmanError) -> CallFailed:
    return CallFailed(_by_status(error.status), error.message, error.code, error.param, error.retry_after_s)


def of_answer(status: int, failure: Failure, retry_after: str | None) -> CallFailed:
    """An answer that is an error from its head on."""
    wait_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    return CallFailed(_by_status(status), failure.message, failure.code, failure.param, wait_s)


def of_event(failure: Failure) -> CallFailed:
    """An error inside a stream, which has no status."""
    status = _BY_TYPE.get(failure.type or "", grpc.StatusCode.UNAVAILABLE)
    return CallFailed(status, failure.message, failure.code, failure.param)


def of_cut(outcome: Outcome | None) -> CallFailed:
    """An answer that ended before it was whole, without a word."""
    if outcome is Outcome.EXPIRED:
        return CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline passed before the answer was complete.")
    return CallFailed(grpc.StatusCode.UNAVAILABLE, "The answer was cut before its end.", "replica_connection_lost")


def _by_status(status: int) -> grpc.StatusCode:
    fallback = grpc.StatusCode.UNAVAILABLE if status >= 500 else grpc.StatusCode.INVALID_ARGUMENT
    return _BY_STATUS.get(status, fallback)


def _details(failed: CallFailed) -> status_pb2.Status:
    found: list[message.Message] = []
    if failed.code is not None:
        found.append(error_details_pb2.ErrorInfo(reason=failed.code, domain=DOMAIN))
    if failed.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=failed.field, description=failed.message)
        found.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if failed.retry_after_s is not None:
        wait = duration_pb2.Duration()
        wait.FromMilliseconds(round(failed.retry_after_s * 1e3))
        found.append(error_details_pb2.RetryInfo(retry_delay=wait))
    packed = []
    for each in found:
        packed.append(any_pb2.Any())
        packed[-1].Pack(each)
    return status_pb2.Status(code=failed.status.value[0], message=failed.message, details=packed)
