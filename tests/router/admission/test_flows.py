"""The counters of flows: who is served next, and how far apart two that both wait can get."""

from random import Random

import pytest

from router.admission import flows as module
from router.admission.flows import Flow, Flows
from router.core import Standing


def standing(tenant: str, flow: str = "", weight: float = 1.0) -> Standing:
    return Standing(tenant=tenant, flow=flow, weight=weight)


@pytest.mark.parametrize("seed", range(5))
def test_service_of_flows_that_wait_stays_within_the_bound_of_virtual_token_counters(seed: int) -> None:
    """The bound: 2 x (the dearest request + what is charged and not settled), per weight, over any interval."""
    random, flows = Random(seed), Flows()
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    accounts = {name: flows.get(standing(name, weight=weight)) for name, weight in weights.items()}
    for flow in accounts.values():
        flows.begin_wait(flow)
    served = dict.fromkeys(accounts, 0.0)
    open_charges: list[tuple[str, float, float]] = []
    dearest, most_unsettled, worst = 400.0, 8 * 400.0, 0.0
    history: list[dict[str, float]] = []
    for _ in range(3000):
        name = min(accounts, key=lambda name: accounts[name].counter)
        expected = random.uniform(1.0, dearest)
        open_charges.append((name, expected, flows.serve(accounts[name], expected)))
        if len(open_charges) > 7:
            ended, charged, rate = open_charges.pop(random.randrange(8))
            actual = random.choice([0.0, random.uniform(1.0, dearest)])
            flows.settle(accounts[ended], actual, charged, rate)
            served[ended] += actual / weights[ended]
        history.append(dict(served))
    for first in random.sample(range(len(history)), 100):
        for last in random.sample(range(first, len(history)), min(10, len(history) - first)):
            gained = [history[last][name] - history[first][name] for name in accounts]
            worst = max(worst, max(gained) - min(gained))
    assert worst <= 2 * (dearest + most_unsettled)
    assert max(served.values()) > 20 * worst, "the bound is not met by serving little"


def test_a_flow_that_comes_late_saves_nothing_up() -> None:
    flows = Flows()
    busy, late = flows.get(standing("busy")), flows.get(standing("late"))
    flows.begin_wait(busy)
    for _ in range(100):
        flows.serve(busy, 10.0)
    flows.begin_wait(late)
    assert late.counter == flows.floor == 990.0


def test_an_uncontended_past_is_not_held_against_a_flow() -> None:
    flows = Flows()
    alone, other = flows.get(standing("alone")), flows.get(standing("other"))
    for _ in range(1000):
        flows.serve(alone, 10.0)
    flows.begin_wait(other)
    assert alone.counter - other.counter == 10.0


def test_a_refund_does_not_sink_an_idle_flow_below_a_newcomer() -> None:
    flows = Flows()
    flow = flows.get(standing("a"))
    rate = flows.serve(flow, 100.0)
    flows.serve(flows.get(standing("b")), 5.0)
    flows.settle(flow, 0.0, 1000.0, rate)
    assert flow.counter == flows.floor


def test_a_refund_is_at_the_rate_of_its_charge_however_many_flows_there_are_by_then() -> None:
    flows = Flows()
    flow = flows.get(standing("t", "0"))
    flows.begin_wait(flow)
    rate = flows.serve(flow, 100.0)
    for number in range(1, 50):
        flows.begin_wait(flows.get(standing("t", str(number))))
    flows.settle(flow, 0.0, 100.0, rate)
    assert flow.counter == 0.0


def test_idle_flows_are_forgotten_and_waiting_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IDLE_FLOWS", 100)
    flows = Flows()
    waiting: list[Flow] = [flows.get(standing(f"w{number}")) for number in range(50)]
    for flow in waiting:
        flows.begin_wait(flow)
    for number in range(10_000):
        flows.serve(flows.get(standing(f"t{number}")), 1.0)
    assert len(flows) <= 300
    assert all(flows.get(standing(flow.tenant)) is flow for flow in waiting)
    assert repr(waiting[0]) == "<Flow w0 at 0, 1 waiting>"
