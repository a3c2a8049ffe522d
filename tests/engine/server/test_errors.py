import json

import pytest

from engine.server.errors import ApiError, bad_request


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (500, "internal_error"),
        (503, "service_unavailable_error"),
    ],
)
def test_the_body_is_openais_for_each_status(status: int, kind: str) -> None:
    error = ApiError(status, "it went wrong", param="field", code="why")
    assert json.loads(error.body()) == {
        "error": {"message": "it went wrong", "type": kind, "param": "field", "code": "why"}
    }
    response = error.response()
    assert (response.status, response.content_type) == (status, "application/json")


def test_what_is_unknown_is_null() -> None:
    assert json.loads(bad_request("no").body())["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
