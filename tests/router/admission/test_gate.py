import asyncio
from random import Random

import pytest

from router.admission.callers import Callers
from router.admission.gate import Gate
from router.admission.passes import Pass
from router.admission.records import Book, create_key
from router.core import Band, Standing, Usage
from router.errors import Draining, Forbidden, Overloaded, RateLimited, Unauthorized
from tests.router.nouns import make_request

REQUEST = make_request()
INSIDE = Pass(Standing())


def test_a_full_gate_refuses_and_counts_nothing() -> None:
    gate = Gate(max_open_requests=1)
    gate.enter(REQUEST)
    with pytest.raises(Overloaded) as refused:
        gate.enter(REQUEST)
    assert refused.value.retry_after_s == 1.0
    assert repr(gate) == "<Gate open 1 of 1 inside>"
    gate.leave(INSIDE)
    assert gate.num_open == 0


def test_requests_open_elsewhere_count_against_the_bound_and_ours_are_told() -> None:
    told: list[int] = []
    gate = Gate(max_open_requests=3, elsewhere=lambda: 2, on_count=told.append)
    gate.enter(REQUEST)
    with pytest.raises(Overloaded, match="3 requests are open"):
        gate.enter(REQUEST)
    gate.leave(INSIDE)
    assert told == [1, 0]


def test_a_draining_gate_refuses_new_requests_and_keeps_those_inside() -> None:
    gate = Gate(max_open_requests=5)
    gate.enter(REQUEST)
    gate.drain()
    with pytest.raises(Draining):
        gate.enter(REQUEST)
    assert repr(gate) == "<Gate draining 1 of 5 inside>"
    gate.leave(INSIDE)
    assert gate.num_open == 0


async def test_wait_empty_returns_when_the_last_one_leaves_a_draining_gate() -> None:
    gate = Gate(max_open_requests=5)
    gate.enter(REQUEST)
    gate.enter(REQUEST)
    waiting = asyncio.ensure_future(gate.wait_empty())
    gate.leave(INSIDE)
    gate.drain()
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.leave(INSIDE)
    await waiting


async def test_an_empty_gate_need_not_be_waited_for() -> None:
    gate = Gate(max_open_requests=5)
    gate.drain()
    await gate.wait_empty()


def test_no_gate_for_nobody() -> None:
    with pytest.raises(ValueError, match="max_open_requests"):
        Gate(max_open_requests=0)


def test_the_count_is_the_number_inside() -> None:
    random, gate, inside = Random(5), Gate(max_open_requests=7), 0
    for _ in range(2000):
        if random.random() < 0.5:
            try:
                gate.enter(REQUEST)
                inside += 1
            except Overloaded:
                assert inside == 7
        elif inside:
            gate.leave(INSIDE)
            inside -= 1
        assert gate.num_open == inside <= 7


def keyed(**fields: object) -> tuple[Gate, str]:
    """A gate with one key, and its token."""
    book, _, token = create_key(Book(), {"name": "alice", **fields}, 0.0)
    callers = Callers()
    callers.replace(book, 100.0)
    return Gate(5, callers=callers, clock=lambda: 100.0, unix_clock=lambda: 1e9), token


def test_a_request_gets_in_as_whom_its_key_says_it_is() -> None:
    gate, token = keyed(tenant="acme", classes=["low"])
    passed = gate.enter(make_request(headers=(("authorization", f"Bearer {token}"),), priority=-1))
    assert passed.standing == Standing(tenant="acme", band=Band.LOW)
    assert gate.num_open == 1


@pytest.mark.parametrize("headers", [(), (("authorization", "Bearer sk-pm-x-y"),), (("x-api-key", "nonsense"),)])
def test_no_key_or_a_wrong_one_is_401_and_counts_nothing(headers: tuple[tuple[str, str], ...]) -> None:
    gate, _ = keyed()
    with pytest.raises(Unauthorized) as refused:
        gate.enter(make_request(headers=headers))
    assert (refused.value.status, refused.value.headers) == (401, (("www-authenticate", "Bearer"),))
    assert gate.num_open == 0


def test_a_model_that_the_key_may_not_use_is_403() -> None:
    gate, token = keyed(models=["llama*"])
    headers = (("x-api-key", token),)
    assert gate.enter(make_request(model="llama-8b", headers=headers)).standing.tenant == "alice"
    with pytest.raises(Forbidden, match="may not use the model `m`") as refused:
        gate.enter(make_request(headers=headers))
    assert (refused.value.status, refused.value.param) == (403, "model")


async def test_limits_count_from_the_gate_to_the_end_of_the_answer() -> None:
    gate, token = keyed(limits={"tokens_per_minute": 1000, "concurrent_requests": 1, "is_strict": True})
    request = make_request(headers=(("api-key", token),), max_tokens=300)
    passed = gate.enter(request)
    await passed.enter()
    refused = gate.enter(request)
    with pytest.raises(RateLimited, match="1 requests open"):
        await refused.enter()
    gate.leave(refused)
    await passed.charge(request, 200)
    assert dict(passed.headers())["x-ratelimit-remaining-tokens"] == "500"
    gate.leave(passed, Usage(prompt_tokens=200, output_tokens=50, first_token_s=0.1))
    assert dict(passed.headers())["x-ratelimit-remaining-tokens"] == "750"
    again = gate.enter(request)
    await again.enter()
    gate.leave(again)
    assert gate.num_open == 0


def test_who_asks_for_a_job_was_settled_when_it_was_submitted() -> None:
    gate, _ = keyed()
    settled = Standing(tenant="acme", band=Band.BULK)
    assert gate.enter(make_request(standing=settled)).standing is settled
    assert gate.num_open == 1
