import asyncio
from random import Random

import pytest

from router.admission.gate import Gate, Ticket
from router.errors import Draining, Overloaded
from tests.router.nouns import make_request


def test_a_full_gate_refuses_and_counts_nothing() -> None:
    gate = Gate(max_open_requests=1)
    with gate.enter(make_request("first")):
        with pytest.raises(Overloaded) as refused:
            gate.enter(make_request("second"))
        assert refused.value.retry_after_s == 1.0
        assert repr(gate) == "<Gate open 1 of 1 inside>"
    assert gate.num_open == 0


def test_a_draining_gate_refuses_new_requests_and_keeps_those_inside() -> None:
    gate = Gate(max_open_requests=5)
    ticket = gate.enter(make_request())
    gate.drain()
    with pytest.raises(Draining):
        gate.enter(make_request())
    assert repr(gate) == "<Gate draining 1 of 5 inside>"
    ticket.leave()
    assert gate.num_open == 0


def test_a_ticket_is_left_exactly_once() -> None:
    gate = Gate(max_open_requests=5)
    with gate.enter(make_request("r1")) as ticket:
        ticket.leave()
        with pytest.raises(RuntimeError, match="<Ticket r1 left> was left before"):
            ticket.leave()
    assert gate.num_open == 0


def test_a_ticket_is_left_when_the_work_fails() -> None:
    gate = Gate(max_open_requests=5)
    with pytest.raises(KeyError), gate.enter(make_request()):
        raise KeyError
    assert gate.num_open == 0


async def test_wait_empty_returns_when_the_last_one_leaves() -> None:
    gate = Gate(max_open_requests=5)
    await gate.wait_empty()
    first, second = gate.enter(make_request()), gate.enter(make_request())
    waiting = asyncio.ensure_future(gate.wait_empty())
    first.leave()
    await asyncio.sleep(0)
    assert not waiting.done()
    second.leave()
    await waiting


def test_no_gate_for_nobody() -> None:
    with pytest.raises(ValueError, match="max_open_requests"):
        Gate(max_open_requests=0)


def test_the_count_is_the_number_of_tickets_inside() -> None:
    random, gate = Random(5), Gate(max_open_requests=7)
    inside: list[Ticket] = []
    for _ in range(2000):
        if random.random() < 0.5:
            try:
                inside.append(gate.enter(make_request()))
            except Overloaded:
                assert len(inside) == 7
        elif inside:
            inside.pop(random.randrange(len(inside))).leave()
        assert gate.num_open == len(inside) <= 7
