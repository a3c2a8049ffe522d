import json
from typing import Any

import pytest

from router.core import Band, Headers, Request, Slo, Surface
from router.errors import InvalidRequest
from router.transports.asking import new_request

HELLO = [{"role": "user", "content": "hello"}]
# What stands for a session in a body, the strongest first.
FIELDS = ("prompt_cache_key", "previous_response_id", "user", "safety_identifier")


def ask(headers: Headers = (), **fields: object) -> Request:
    body = json.dumps({"model": "m", "messages": HELLO, **fields}).encode()
    return new_request(Surface.CHAT, body, headers, now=100.0, deadline=700.0)


@pytest.mark.parametrize("number", range(len(FIELDS)))
def test_the_strongest_field_of_a_body_is_its_session(number: int) -> None:
    fields: dict[str, Any] = {name: f"by {name}" for name in FIELDS[number:]}
    assert ask(**fields).session == f"by {FIELDS[number]}"


def test_a_header_is_stronger_than_any_field_and_nothing_said_is_no_session() -> None:
    assert ask((("x-session-id", "s1"),), user="u1").session == "s1"
    assert ask().session is None
    assert ask(user=["not", "a", "text"], safety_identifier="hashed").session == "hashed"


def test_a_credential_is_no_session() -> None:
    """Pitfall: one shared API key pins everybody to one replica."""
    assert ask((("authorization", "Bearer shared"), ("x-api-key", "shared"), ("api-key", "shared"))).session is None


def test_hoped_for_latencies_ids_and_deadlines_come_with_the_request() -> None:
    request = ask((("x-slo-ttft-ms", "300"), ("x-request-id", "mine-1")), timeout=5.0, stream=True)
    assert (request.slo, request.id, request.deadline, request.is_stream) == (Slo(ttft_s=0.3), "mine-1", 105.0, True)
    assert ask(timeout=5000.0).deadline == 700.0, "the router's own is the latest"


def test_a_header_that_makes_no_sense_is_named() -> None:
    with pytest.raises(InvalidRequest, match="x-slo-ttft-ms") as caught:
        ask((("x-slo-ttft-ms", "soon"),))
    assert caught.value.param == "x-slo-ttft-ms"


def test_who_names_a_service_tier_is_told_it_where_answers_have_such_a_field() -> None:
    body = b'{"model": "m", "prompt": "p", "input": "p", "service_tier": "flex"}'
    asked = new_request(Surface.COMPLETIONS, body, (), 0.0, 9.0)
    assert (asked.names_tier, asked.band) == (True, Band.LOW)
    assert not new_request(Surface.EMBEDDINGS, body, (), 0.0, 9.0).names_tier
    assert not new_request(Surface.COMPLETIONS, b'{"model": "m", "prompt": "p"}', (), 0.0, 9.0).names_tier
