"""One shallow tree of errors. Knows statuses and OpenAI's error words; knows nothing of sockets or routing.

Each class states the HTTP `status`, OpenAI's `type` and `code`, whether another attempt may help (`retryable`) and
whether the fault is the replica's (`blames_replica`: it counts against its breaker). A foreign error is translated
into one of these once, where it appears.
"""


class PointsmanError(Exception):
    """Root of all errors that a client may see. `retry_after_s` becomes the Retry-After header (at most 60); `headers`
    go with the answer as they are."""

    status = 500
    type = "server_error"
    code: str | None = None
    retryable = False
    blames_replica = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.headers = headers
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(PointsmanError):
    """The request is wrong; `param` names the field."""

    status = 400
    type = "invalid_request_error"


class ContextTooLong(InvalidRequest):
    code = "context_length_exceeded"


class UnknownRoute(InvalidRequest):
    status = 404
    code = "unknown_url"


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"


class UnknownModel(InvalidRequest):
    status = 404
    code = "model_not_found"


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class HeadTooLarge(InvalidRequest):
    status = 431
    code = "headers_too_large"


class UnsupportedEncoding(InvalidRequest):
    status = 415
    code = "unsupported_content_encoding"


class Unauthorized(PointsmanError):
    """No valid key."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=(("www-authenticate", "Bearer"),))


class Forbidden(PointsmanError):
    """The key is good, but not for this."""

    status = 403
    type = "invalid_request_error"
    code = "permission_denied"

    def __init__(self, message: str, *, param: str | None = None, code: str = "permission_denied") -> None:
        super().__init__(message, param=param)
        self.code = code


class RateLimited(PointsmanError):
    """A key or tenant has had what it may have for now."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class BudgetSpent(PointsmanError):
    """A key or tenant has had what it may have this day or month: another try is of no use."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers=(("x-should-retry", "false"),))


class Overloaded(PointsmanError):
    """The queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class Hopeless(Overloaded):
    """It would wait longer than it may: refused at once. Retry-After tells when it would not."""

    code = "wait_exceeds_deadline"


class Displaced(Overloaded):
    """A request of a higher class took its place, in a full queue or before its first byte."""

    code = "displaced"


class Draining(PointsmanError):
    """This router is shutting down and takes no new work."""

    status = 503
    type = "service_unavailable"
    code = "draining"


class NoReplica(PointsmanError):
    """No replica of the model was ready within the deadline."""

    status = 503
    type = "service_unavailable"
    code = "no_ready_replica"


class Expired(PointsmanError):
    """The request's deadline passed before its answer was complete."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class ClientStalled(PointsmanError):
    """The client stopped reading for longer than the idle timeout. Nobody will see this error."""

    status = 408
    code = "client_stalled"


class UpstreamError(PointsmanError):
    """Root of what goes wrong with a replica. `has_begun`: bytes of an answer had arrived."""

    status = 502
    type = "upstream_error"
    code = "replica_failed"
    retryable = True
    blames_replica = True


class ConnectFailed(UpstreamError):
    """No connection: nothing of the request reached the replica."""

    code = "replica_unreachable"


class ConnectionCut(UpstreamError):
    """The connection ended before the answer did."""

    code = "replica_connection_lost"


class BadAnswer(UpstreamError):
    """What came back is not HTTP, or breaks its own framing."""

    code = "replica_bad_answer"


class UpstreamTimeout(UpstreamError):
    """The replica was silent for too long."""

    status = 504
    code = "replica_timeout"


class HandoverFailed(UpstreamError):
    """Another replica was to compute the prompt, and has not: not the fault of the one that was to answer."""

    code = "handover_failed"
    blames_replica = False


class KeyRefused(UpstreamError):
    """The replica does not take the key that we have for it: a fault of the settings, not of the client."""

    code = "replica_key_refused"


class UpstreamStatus(UpstreamError):
    """The replica answered with an error status; `body` is its answer, made an OpenAI error body."""

    def __init__(self, status: int, body: bytes, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"the replica answered with status {status}", retry_after_s=retry_after_s)
        self.status = status
        self.body = body
        self.is_backpressure = status in (429, 503)
        self.retryable = self.is_backpressure or status in (500, 502, 504)
        self.blames_replica = self.retryable and not self.is_backpressure
