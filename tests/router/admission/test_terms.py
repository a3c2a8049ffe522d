"""What headers and bodies ask for, by all the names that clients use."""

import pytest

from router.admission.terms import asked_band, asked_deadline, terms, timeout_s
from router.core import Band, Headers
from router.errors import InvalidRequest


@pytest.mark.parametrize(
    ("headers", "priority", "tier", "band"),
    [
        ((), None, None, None),
        ((), 0, None, None),
        ((), -3, None, Band.HIGH),
        ((), 200, None, Band.BULK),
        ((), None, "flex", Band.LOW),
        ((), None, "priority", Band.HIGH),
        ((), None, "something new", None),
        ((), 5, "priority", Band.BULK),
        ((("x-pointsman-priority", "Low"),), -1, "priority", Band.LOW),
        ((("x-pointsman-priority", "-1"),), None, None, Band.HIGH),
        ((("x-llm-d-inference-objective", "bulk"),), None, None, Band.BULK),
        ((("x-gateway-inference-objective", "their-own-name"),), None, None, None),
        ((("x-llm-d-inference-objective", "3"),), None, None, None),
        ((("x-llm-d-inference-objective", "bulk"),), -1, None, Band.HIGH),
    ],
)
def test_the_class_asked_for(headers: Headers, priority: int | None, tier: str | None, band: Band | None) -> None:
    assert asked_band(terms(headers), priority, tier) is band


def test_an_unknown_class_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="one of high, normal, low, bulk") as refused:
        asked_band(terms((("x-pointsman-priority", "urgent"),)), None, None)
    assert refused.value.param == "x-pointsman-priority"


@pytest.mark.parametrize(
    ("headers", "body", "deadline"),
    [
        ((), None, 700.0),
        ((), 5.0, 105.0),
        ((("x-request-timeout", "2.5"),), 5.0, 102.5),
        ((("x-request-timeout", "1500ms"),), None, 101.5),
        ((("x-pointsman-timeout", "3s"), ("x-request-timeout", "9")), None, 103.0),
        ((("x-request-timeout", "86400"),), None, 700.0),
    ],
)
def test_the_deadline_asked_for_is_never_later_than_the_routers(
    headers: Headers, body: float | None, deadline: float
) -> None:
    assert asked_deadline(terms(headers), body, now=100.0, latest=700.0) == pytest.approx(deadline)


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "1e300", "soon", "", "700000000"])
def test_a_negative_or_absurd_deadline_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        terms((("x-request-timeout", value),))
    assert refused.value.param == "x-request-timeout"
    with pytest.raises(InvalidRequest):
        timeout_s(-5.0, "timeout")


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        ((("authorization", "Bearer abc"),), "abc"),
        ((("authorization", "bearer  abc "),), "abc"),
        ((("authorization", "Basic abc"), ("x-api-key", "k")), "k"),
        ((("api-key", "azure"),), "azure"),
        ((("authorization", "Bearer "),), None),
        ((), None),
    ],
)
def test_the_credential_by_its_three_names(headers: Headers, credential: str | None) -> None:
    assert terms(headers).credential == credential


def test_the_tenant_by_our_name_or_another_routers() -> None:
    both = (("x-gateway-inference-fairness-id", "old"), ("x-llm-d-inference-fairness-id", "new"))
    assert terms(both).tenant == "new"
    assert terms((*both, ("x-pointsman-tenant", "ours"))).tenant == "ours"
    with pytest.raises(InvalidRequest):
        terms((("x-pointsman-tenant", "a" * 129),))
