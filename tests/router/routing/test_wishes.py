import pytest

from router.core import Slo
from router.errors import InvalidRequest
from router.routing.wishes import MAX_SESSION_CHARS, SESSION_HEADERS, session_of, slo_of


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_a_session_comes_by_header(name: str) -> None:
    assert session_of(((name, "s1"),), "by-body") == "s1"


def test_of_several_headers_the_first_name_counts() -> None:
    assert session_of((("x-dynamo-session-id", "d"), ("x-session-id", "s"))) == "s"


def test_without_a_header_the_bodys_first_text_is_the_session() -> None:
    assert session_of((), None, "", 7, "user-1") == "user-1"
    assert session_of((), None, None) is None
    assert session_of((("x-session-id", ""),), "key") == "key"


def test_credentials_are_no_session() -> None:
    """Pitfall: one shared API key pins everybody to one replica."""
    assert session_of((("authorization", "Bearer one"), ("x-api-key", "one"), ("cookie", "a=b"))) is None


def test_a_session_is_not_kept_at_any_length() -> None:
    assert session_of((("x-session-id", "s" * 5000),)) == "s" * MAX_SESSION_CHARS


def test_the_hoped_for_latency_comes_in_milliseconds_and_the_new_name_wins() -> None:
    assert slo_of((("x-slo-ttft-ms", "250"),)) == Slo(ttft_s=0.25)
    assert slo_of((("x-slo-ttft-ms", "250"), ("x-llm-d-slo-ttft-ms", "100"), ("x-slo-tpot-ms", "20.5"))) == Slo(
        0.1, 0.0205
    )
    assert slo_of((("x-llm-d-slo-tpot-ms", "30"),)) == Slo(tpot_s=0.03)
    assert slo_of((("accept", "*/*"),)) is None


@pytest.mark.parametrize("value", ["", "soon", "0", "-5", "nan", "inf", "1e999"])
def test_a_latency_that_makes_no_sense_is_named(value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        slo_of((("x-slo-tpot-ms", value),))
    assert caught.value.param == "x-slo-tpot-ms"
    assert "`x-slo-tpot-ms` must be a number of milliseconds above 0" in caught.value.message
