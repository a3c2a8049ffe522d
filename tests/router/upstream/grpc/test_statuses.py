"""How calls end: what may be tried elsewhere, what speaks against a replica, and what the client reads."""

import base64
import json

import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status as RichStatus

from router.errors import ConnectionCut, UpstreamStatus, UpstreamTimeout
from router.upstream.grpc.statuses import OK, Code, Status, error_of, status_in

HEAD = ((":status", "200"), ("content-type", "application/grpc+proto"))


@pytest.mark.parametrize(
    ("code", "status", "retryable", "blames"),
    [
        (Code.INVALID_ARGUMENT, 400, False, False),
        (Code.NOT_FOUND, 404, False, False),
        (Code.PERMISSION_DENIED, 403, False, False),
        (Code.RESOURCE_EXHAUSTED, 429, True, False),
        (Code.UNAVAILABLE, 503, True, False),
        (Code.UNIMPLEMENTED, 501, False, False),
        (Code.INTERNAL, 500, True, True),
        (Code.UNKNOWN, 502, True, True),
        (Code.DATA_LOSS, 502, True, True),
        (77, 502, True, True),
    ],
)
def test_a_code_says_who_may_be_asked_next_and_who_is_to_blame(
    code: int, status: int, retryable: bool, blames: bool
) -> None:
    error = error_of(Status(code, "no"))
    assert isinstance(error, UpstreamStatus)
    assert (error.status, error.retryable, error.blames_replica) == (status, retryable, blames)
    assert json.loads(error.body)["error"]["message"] == "no"


def test_a_deadline_and_a_cancel_are_errors_of_their_own() -> None:
    assert isinstance(error_of(Status(Code.DEADLINE_EXCEEDED)), UpstreamTimeout)
    assert isinstance(error_of(Status(Code.CANCELLED)), ConnectionCut)


def test_a_head_of_grpc_says_nothing_yet() -> None:
    assert status_in(HEAD, is_first=True) is OK


def test_a_head_of_something_else_is_a_failure() -> None:
    assert status_in(((":status", "200"), ("content-type", "text/html")), is_first=True).code == Code.UNKNOWN
    assert status_in(((":status", "503"), ("content-type", "text/html")), is_first=True).code == Code.UNAVAILABLE
    assert status_in(((":status", "404"),), is_first=True).code == Code.UNIMPLEMENTED


def test_an_end_without_a_status_is_a_failure() -> None:
    assert status_in((("x", "y"),), is_first=False).code == Code.UNKNOWN
    assert status_in((("grpc-status", "none"),), is_first=False).code == Code.UNKNOWN


def test_the_replicas_own_words_and_details_are_kept() -> None:
    rich = RichStatus()
    rich.details.add().Pack(BadRequest(field_violations=[{"field": "temperature"}]))
    rich.details.add().Pack(RetryInfo(retry_delay={"seconds": 2}))
    details = base64.b64encode(rich.SerializeToString()).decode().rstrip("=")
    trailers = (("grpc-status", "8"), ("grpc-message", "zu hei%C3%9F"), ("grpc-status-details-bin", details))
    status = status_in(trailers, is_first=True)
    assert status == Status(Code.RESOURCE_EXHAUSTED, "zu heiß", "temperature", 2.0)
    error = error_of(status)
    assert isinstance(error, UpstreamStatus)
    assert error.retry_after_s == 2.0
    assert json.loads(error.body)["error"]["param"] == "temperature"


def test_details_that_are_none_are_passed_over() -> None:
    fields = (("grpc-status", "3"), ("grpc-status-details-bin", "%%%"))
    assert status_in(fields, is_first=True) == Status(Code.INVALID_ARGUMENT)
