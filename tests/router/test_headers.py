import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import headers
from router.core import Decision, Lease
from tests.router.nouns import make_demand, make_replica


def make_lease() -> Lease:
    decision = Decision(make_replica("a:1"), "pointsman", 16, 4, 0.0, {})
    return Lease(make_demand("req-1"), decision, 0.0, lambda _: None, lambda _: None)


@pytest.mark.parametrize("name", ["x-request-id", "x-client-request-id"])
def test_a_sane_request_id_of_the_client_is_kept(name: str) -> None:
    assert headers.request_id(((name, "abc-123_x.y:z/+="),)) == "abc-123_x.y:z/+="


def test_our_own_name_wins_over_the_clients_other_one() -> None:
    assert headers.request_id((("x-client-request-id", "b"), ("x-request-id", "a"))) == "a"


@pytest.mark.parametrize("value", ["", "a b", "a\tb", "é", "a" * 129, 'a"b', "a<b", "a\x7fb"])
def test_an_odd_request_id_is_replaced_by_a_new_one(value: str) -> None:
    first = headers.request_id((("x-request-id", value),))
    assert first.startswith("req-")
    assert first != headers.request_id((("x-request-id", value),))


@given(st.text())
def test_a_request_id_is_always_safe_in_a_header(value: str) -> None:
    assert headers.request_id((("x-request-id", value),)).isascii()
    assert headers.request_id((("x-request-id", value),)).isprintable()


def test_find_gives_the_first_of_a_name() -> None:
    assert headers.find((("a", "1"), ("a", "2")), "a") == "1"
    assert headers.find((), "a") is None


def test_unknown_headers_pass_to_the_replica() -> None:
    sent = headers.to_replica((("x-trace", "1"), ("traceparent", "00-a")), None, forwards_credentials=False)
    assert ("x-trace", "1") in sent
    assert ("traceparent", "00-a") in sent


@pytest.mark.parametrize(
    "name",
    "connection keep-alive te trailer transfer-encoding upgrade http2-settings proxy-authorization host content-length "
    "accept-encoding expect cookie authorization x-api-key api-key x-request-id".split(),
)
def test_what_is_for_this_hop_or_for_us_alone_stays_here(name: str) -> None:
    sent = headers.to_replica(((name, "secret"),), None, forwards_credentials=False)
    assert headers.find(sent, name) is None


def test_headers_that_any_connection_header_lists_stay_here() -> None:
    received = (("connection", "close, X-One"), ("x-one", "1"), ("connection", "x-two"), ("x-two", "2"), ("x-3", "3"))
    sent = headers.to_replica(received, None, forwards_credentials=False)
    assert sent == (("x-3", "3"), ("content-type", "application/json"))


def test_a_missing_content_type_is_json_and_a_given_one_stays() -> None:
    bare = headers.to_replica((), None, forwards_credentials=False)
    assert headers.find(bare, "content-type") == "application/json"
    given_one = headers.to_replica((("content-type", "application/json; x"),), None, forwards_credentials=False)
    assert [value for name, value in given_one if name == "content-type"] == ["application/json; x"]


def test_credentials_pass_only_where_configured() -> None:
    sent = headers.to_replica((("authorization", "Bearer client"),), None, forwards_credentials=True)
    assert headers.find(sent, "authorization") == "Bearer client"


def test_the_replicas_own_key_wins_over_a_forwarded_one() -> None:
    received = (("authorization", "Bearer client"), ("x-api-key", "client"))
    sent = headers.to_replica(received, "replica-key", forwards_credentials=True)
    assert [value for name, value in sent if name == "authorization"] == ["Bearer replica-key"]
    assert headers.find(sent, "x-api-key") is None


def test_another_key_makes_other_headers_of_the_same_received() -> None:
    """What is made once for many requests must not be given to a replica with another key."""
    received = (("authorization", "Bearer client"),)
    keys: list[tuple[str | None, bool]] = [("one", True), ("two", True), (None, True), (None, False)]
    made = [headers.to_replica(received, key, forwards_credentials=forwards) for key, forwards in keys * 2]
    found = [headers.find(each, "authorization") for each in made]
    assert found == ["Bearer one", "Bearer two", "Bearer client", None] * 2


def test_the_client_hears_who_answered_and_why() -> None:
    assert headers.own(make_lease()) == (
        ("x-request-id", "req-1"),
        ("x-pointsman-replica", "a:1"),
        ("x-pointsman-reason", "policy=pointsman; matched_tokens=16; expected_wait_ms=0.0"),
    )


@pytest.mark.parametrize(
    "name",
    "connection keep-alive transfer-encoding server date upgrade trailer x-request-id set-cookie openai-organization "
    "x-pointsman-replica x-pointsman-reason".split(),
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_replicas_framing_and_names_stay_here(name: str, is_stream: bool) -> None:
    sent = headers.to_client(((name, "x"),), is_stream=is_stream)
    assert headers.find(sent, name) is None


def test_what_a_replica_lists_for_its_hop_stays_here() -> None:
    sent = headers.to_client((("connection", "X-Hop"), ("x-hop", "1")), is_stream=False)
    assert headers.find(sent, "x-hop") is None


def test_a_plain_answer_keeps_its_type_and_caching() -> None:
    received = (("content-type", "application/json"), ("cache-control", "max-age=1"), ("x-engine", "1"))
    assert headers.to_client(received, is_stream=False) == received


def test_a_stream_passes_proxies_unbuffered() -> None:
    received = (("content-type", "text/event-stream"), ("cache-control", "max-age=1"), ("x-accel-buffering", "yes"))
    assert headers.to_client(received, is_stream=True) == (
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [("text/event-stream", True), ("text/event-stream; charset=utf-8", True), ("application/json", False)],
)
def test_an_event_stream_is_known_by_its_type(value: str, expected: bool) -> None:
    assert headers.is_event_stream((("content-type", value),)) is expected
    assert not headers.is_event_stream(())
