import asyncio
from random import Random

import pytest

from router.admission.gate import Gate
from router.errors import Draining, Overloaded


def test_a_full_gate_refuses_and_counts_nothing() -> None:
    gate = Gate(max_open_requests=1)
    gate.enter()
    with pytest.raises(Overloaded) as refused:
        gate.enter()
    assert refused.value.retry_after_s == 1.0
    assert repr(gate) == "<Gate open 1 of 1 inside>"
    gate.leave()
    assert gate.num_open == 0


def test_requests_open_elsewhere_count_against_the_bound_and_ours_are_told() -> None:
    told: list[int] = []
    gate = Gate(max_open_requests=3, elsewhere=lambda: 2, on_count=told.append)
    gate.enter()
    with pytest.raises(Overloaded, match="3 requests are open"):
        gate.enter()
    gate.leave()
    assert told == [1, 0]


def test_a_draining_gate_refuses_new_requests_and_keeps_those_inside() -> None:
    gate = Gate(max_open_requests=5)
    gate.enter()
    gate.drain()
    with pytest.raises(Draining):
        gate.enter()
    assert repr(gate) == "<Gate draining 1 of 5 inside>"
    gate.leave()
    assert gate.num_open == 0


async def test_wait_empty_returns_when_the_last_one_leaves_a_draining_gate() -> None:
    gate = Gate(max_open_requests=5)
    gate.enter()
    gate.enter()
    waiting = asyncio.ensure_future(gate.wait_empty())
    gate.leave()
    gate.drain()
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.leave()
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
                gate.enter()
                inside += 1
            except Overloaded:
                assert inside == 7
        elif inside:
            gate.leave()
            inside -= 1
        assert gate.num_open == inside <= 7
