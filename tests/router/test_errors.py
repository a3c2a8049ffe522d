import inspect

import pytest

from router import errors
from router.errors import HandoverFailed, InvalidRequest, PointsmanError, UpstreamError, UpstreamStatus

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, PointsmanError) and found is not UpstreamStatus
]

# name: (status, type, code, retryable, blames_replica)
TABLE = {
    "PointsmanError": (500, "server_error", None, False, False),
    "InvalidRequest": (400, "invalid_request_error", None, False, False),
    "ContextTooLong": (400, "invalid_request_error", "context_length_exceeded", False, False),
    "UnknownRoute": (404, "invalid_request_error", "unknown_url", False, False),
    "MethodNotAllowed": (405, "invalid_request_error", "method_not_allowed", False, False),
    "UnknownModel": (404, "invalid_request_error", "model_not_found", False, False),
    "BodyTooLarge": (413, "invalid_request_error", "request_too_large", False, False),
    "HeadTooLarge": (431, "invalid_request_error", "headers_too_large", False, False),
    "UnsupportedEncoding": (415, "invalid_request_error", "unsupported_content_encoding", False, False),
    "Unauthorized": (401, "invalid_request_error", "invalid_api_key", False, False),
    "Forbidden": (403, "invalid_request_error", "permission_denied", False, False),
    "RateLimited": (429, "rate_limit_error", "rate_limit_exceeded", False, False),
    "BudgetSpent": (429, "insufficient_quota", "insufficient_quota", False, False),
    "Overloaded": (429, "rate_limit_error", "queue_full", False, False),
    "Hopeless": (429, "rate_limit_error", "wait_exceeds_deadline", False, False),
    "Displaced": (429, "rate_limit_error", "displaced", False, False),
    "Draining": (503, "service_unavailable", "draining", False, False),
    "NoReplica": (503, "service_unavailable", "no_ready_replica", False, False),
    "Expired": (504, "timeout_error", "deadline_exceeded", False, False),
    "ClientStalled": (408, "server_error", "client_stalled", False, False),
    "UpstreamError": (502, "upstream_error", "replica_failed", True, True),
    "ConnectFailed": (502, "upstream_error", "replica_unreachable", True, True),
    "ConnectionCut": (502, "upstream_error", "replica_connection_lost", True, True),
    "BadAnswer": (502, "upstream_error", "replica_bad_answer", True, True),
    "UpstreamTimeout": (504, "upstream_error", "replica_timeout", True, True),
    "KeyRefused": (502, "upstream_error", "replica_key_refused", True, True),
    "HandoverFailed": (502, "upstream_error", "handover_failed", True, False),
}


def test_the_table_names_every_error() -> None:
    assert {found.__name__ for found in CLASSES} == set(TABLE)


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_each_error_states_its_status_its_words_and_whose_fault_it_is(found: type[PointsmanError]) -> None:
    stated = (found.status, found.type, found.code, found.retryable, found.blames_replica)
    assert stated == TABLE[found.__name__]


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_only_a_replicas_error_is_retryable_or_blames_it(found: type[PointsmanError]) -> None:
    is_replicas = issubclass(found, UpstreamError)
    assert found.retryable == is_replicas
    # What another replica did not do is not the fault of the one that was to answer.
    assert found.blames_replica == (is_replicas and found is not HandoverFailed)


# status: (retryable, blames_replica). A 4xx is the client's; 429 and 503 are back-pressure, not faults.
STATUSES = {
    400: (False, False),
    401: (False, False),
    404: (False, False),
    408: (False, False),
    422: (False, False),
    429: (True, False),
    500: (True, True),
    501: (False, False),
    502: (True, True),
    503: (True, False),
    504: (True, True),
}


@pytest.mark.parametrize("status", STATUSES)
def test_a_replicas_status_says_whether_to_try_again_and_whom_to_blame(status: int) -> None:
    error = UpstreamStatus(status, b"{}")
    assert (error.retryable, error.blames_replica) == STATUSES[status]
    assert error.is_backpressure == (status in (429, 503))
    assert error.status == status


def test_an_error_carries_its_field_and_its_wait() -> None:
    error = InvalidRequest("The field `model` is required.", param="model", retry_after_s=3.0)
    assert (str(error), error.message) == ("The field `model` is required.",) * 2
    assert (error.param, error.retry_after_s) == ("model", 3.0)


def test_a_replicas_answer_is_kept_with_its_wait() -> None:
    error = UpstreamStatus(429, b'{"error": {}}', retry_after_s=7.0)
    assert (error.body, error.retry_after_s) == (b'{"error": {}}', 7.0)
    assert str(error) == "the replica answered with status 429"
