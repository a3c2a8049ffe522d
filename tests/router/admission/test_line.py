from collections.abc import Callable
from random import Random

import pytest

from router.admission.bands import BandTerms
from router.admission.line import MAX_MISSES, Line
from router.admission.waiters import PATIENCE_S, Waiter
from router.core import Band, Standing
from tests.router.nouns import make_demand


def join(line: Line[None], id: str, **fields: object) -> Waiter[None]:
    sequence = int(fields.pop("sequence", 0))  # type: ignore[call-overload]
    return line.join(make_demand(id, **fields), None, 0.0, sequence)  # type: ignore[arg-type]


class Tries:
    """A fleet without a free place: who was offered one."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def refuse(self, waiter: Waiter[None]) -> bool:
        self.ids.append(waiter.demand.request.id)
        return False


def drain(
    line: Line[None],
    fits: Callable[[Waiter[None]], bool] = lambda _: True,
    charge: float = 0.0,
    now: float = 0.0,
) -> list[str]:
    """Advance until nothing more moves; who was served, in order. Each is charged so many tokens."""
    served: list[str] = []

    def serve(waiter: Waiter[None]) -> bool:
        if fits(waiter):
            line.serve(line.flows.get(waiter.standing), waiter.band, charge, now)
            served.append(waiter.demand.request.id)
        return fits(waiter)

    while line.advance(serve):
        pass
    return served


def test_order_is_priority_then_arrival_then_sequence() -> None:
    line: Line[None] = Line()
    join(line, "late", arrived=3.0, sequence=0)
    join(line, "twin2", arrived=1.0, sequence=2)
    join(line, "twin1", arrived=1.0, sequence=1)
    join(line, "urgent", arrived=9.0, priority=-1, sequence=3)
    join(line, "patient", arrived=0.0, priority=1, sequence=4)
    assert drain(line) == ["urgent", "twin1", "twin2", "late", "patient"]


def test_order_holds_across_lanes() -> None:
    line: Line[None] = Line()
    for number in range(9):
        join(line, str(number), arrived=float(number), adapter=[None, "x", "y"][number % 3])
    assert drain(line) == [str(number) for number in range(9)]


def test_a_head_with_limits_of_its_own_blocks_only_its_like() -> None:
    line: Line[None] = Line()
    join(line, "x1", arrived=0.0, adapter="x")
    join(line, "x2", arrived=1.0, adapter="x")
    join(line, "retry", arrived=2.0, tried=frozenset({"a"}))
    join(line, "plain", arrived=3.0)
    assert drain(line, lambda waiter: waiter.demand.adapter != "x") == ["retry", "plain"]
    assert repr(line) == "<Line 2 waiting in 1 lanes>"


def test_a_blocked_lane_costs_one_try_not_one_per_waiter() -> None:
    line: Line[None] = Line()
    for number in range(1000):
        join(line, str(number), arrived=float(number), adapter="x", sequence=number)
    tries = Tries()
    line.advance(tries.refuse)
    assert tries.ids == ["0"]


def test_a_head_without_limits_that_finds_no_place_ends_the_round() -> None:
    line: Line[None] = Line()
    join(line, "plain", arrived=0.0)
    join(line, "x", arrived=1.0, adapter="x")
    tries = Tries()
    assert not line.advance(tries.refuse)
    assert tries.ids == ["plain"]


def test_many_blocked_lanes_are_tried_in_bounded_rounds_until_each_had_its_turn() -> None:
    line: Line[None] = Line()
    for number in range(3 * MAX_MISSES):
        join(line, str(number), arrived=float(number), adapter=f"x{number}")
    join(line, "last", arrived=1e6, adapter="fits")
    tries: list[str] = []

    def serve(waiter: Waiter[None]) -> bool:
        tries.append(waiter.demand.request.id)
        return waiter.demand.adapter == "fits"

    sizes = []
    has_more = True
    while has_more:
        before = len(tries)
        has_more = line.advance(serve)
        sizes.append(len(tries) - before)
    assert tries[-1] == "last"
    assert max(sizes) == MAX_MISSES
    assert len(tries) == len(set(tries)) == 3 * MAX_MISSES + 1
    line.advance(serve)
    assert tries[-MAX_MISSES:] == [str(number) for number in range(MAX_MISSES)], "the next change starts at the front"


def test_who_holds_up_whom() -> None:
    line: Line[None] = Line()
    join(line, "x", adapter="x")
    assert line.is_held_up(make_demand(adapter="x"))
    assert not line.is_held_up(make_demand(adapter="y"))
    assert not line.is_held_up(make_demand())
    join(line, "plain")
    assert line.is_held_up(make_demand(adapter="y"))


def test_leaving_twice_is_leaving_once() -> None:
    line: Line[None] = Line()
    waiter = join(line, "r")
    line.leave(waiter)
    line.leave(waiter)
    assert (len(line), line.oldest, repr(waiter)) == (0, None, "<Waiter r gone>")


def test_those_who_left_do_not_pile_up_behind_a_blocked_head() -> None:
    line: Line[None] = Line()
    join(line, "stuck", arrived=0.0)
    for number in range(10_000):
        line.leave(join(line, str(number), arrived=1.0 + number, sequence=number))
    (lane,) = line._lanes.values()
    (run,) = lane.crowds[Band.NORMAL].runs.values()
    band = line._bands[Band.NORMAL]
    assert len(run._in_order) + len(band.everyone._waiters) < 100


def standing(tenant: str, band: Band = Band.NORMAL, weight: float = 1.0) -> Standing:
    return Standing(tenant=tenant, band=band, weight=weight)


def test_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    line: Line[None] = Line()
    for number in range(100):
        join(line, f"flood{number}", sequence=number, standing=standing("flood"))
    for number in range(3):
        join(line, f"quiet{number}", sequence=100 + number, standing=standing("quiet"))
    served = drain(line, charge=10.0)
    assert [id.rstrip("0123456789") for id in served[:7]] == ["flood", "quiet"] * 3 + ["flood"]


def test_weights_share_tokens_in_their_ratio() -> None:
    line: Line[None] = Line()
    for number in range(400):
        name = "heavy" if number % 2 else "light"
        join(line, name, sequence=number, standing=standing(name, weight=3.0 if number % 2 else 1.0))
    served = drain(line, charge=10.0)[:100]
    assert served.count("heavy") == 75


def test_the_flows_of_a_tenant_share_what_is_the_tenants() -> None:
    line: Line[None] = Line()
    for number in range(600):
        tenant = "one" if number % 4 == 0 else "many"
        flow = "" if tenant == "one" else str(number % 4)
        join(line, tenant, sequence=number, standing=Standing(tenant=tenant, flow=flow))
    served = drain(line, charge=10.0)[:120]
    assert served.count("one") == pytest.approx(60, abs=2)


def test_within_a_flow_the_earliest_deadline_goes_first_but_passes_nobody_for_ever() -> None:
    line: Line[None] = Line()
    join(line, "patient", arrived=0.0, deadline=600.0)
    join(line, "hasty", arrived=5.0, deadline=9.0, sequence=1)
    join(line, "late and hasty", arrived=PATIENCE_S + 1, deadline=PATIENCE_S + 4, sequence=2)
    assert drain(line) == ["hasty", "patient", "late and hasty"]


def test_a_low_band_gets_its_least_share_of_a_pool_that_a_high_band_fills() -> None:
    line: Line[None] = Line(BandTerms(min_shares=(0.0, 0.1, 0.05, 0.05), ageing_s=1e9))
    for number in range(2000):
        band = [Band.HIGH, Band.BULK][number % 2]
        join(line, band.name, sequence=number, standing=standing("t", band))
    served = drain(line, charge=10.0)[:1000]
    assert served.count("BULK") == pytest.approx(50, abs=2)


def test_the_share_of_a_band_grows_while_its_oldest_waits() -> None:
    def bulk_among_1000(waited_s: float) -> int:
        line: Line[None] = Line(BandTerms())
        for number in range(2000):
            band = [Band.HIGH, Band.BULK][number % 2]
            join(line, band.name, sequence=number, standing=standing("t", band))
        return drain(line, charge=10.0, now=waited_s)[:1000].count("BULK")

    assert bulk_among_1000(0.0) == pytest.approx(50, abs=2)
    assert bulk_among_1000(60.0) == pytest.approx(150, abs=2)
    assert bulk_among_1000(6000.0) == pytest.approx(250, abs=2)


def test_who_gives_way_in_a_full_line() -> None:
    line: Line[None] = Line()
    for number in range(3):
        join(line, f"flood{number}", sequence=number, standing=standing("flood"))
    bulk = join(line, "bulk", sequence=9, standing=standing("x", Band.BULK))
    assert line.victim(standing("quiet")) is bulk
    line.leave(bulk)
    assert line.victim(standing("flood")) is None
    victim = line.victim(standing("quiet"))
    assert victim is not None
    assert victim.demand.request.id == "flood2"
    assert line.victim(standing("quiet", Band.BULK)) is None


def test_how_many_are_ahead() -> None:
    line: Line[None] = Line()
    waiters = [join(line, f"f{n}", sequence=n, standing=standing("flood")) for n in range(100)]
    assert line.num_ahead(standing("flood")) == 100
    assert line.num_ahead(standing("quiet")) == 1
    assert line.num_ahead(standing("quiet", Band.HIGH)) == 0
    assert line.num_ahead(standing("quiet", Band.BULK)) == 100
    assert [line.num_ahead_of(waiters[at]) for at in (0, 50, 99)] == [0, 50, 99]
    line.leave(waiters[0])
    assert line.num_ahead_of(waiters[50]) == 49


def test_a_refund_moves_its_flow_forward_at_once() -> None:
    line: Line[None] = Line()
    for number, tenant in enumerate(["a", "b", "a", "b"]):
        join(line, f"{tenant}{number}", sequence=number, standing=standing(tenant))
    rate = line.serve(line.flows.get(standing("a")), Band.NORMAL, 1000.0, 0.0)
    line.serve(line.flows.get(standing("b")), Band.NORMAL, 100.0, 0.0)
    line.settle(line.flows.get(standing("a")), 0.0, 1000.0, rate)
    assert drain(line, charge=10.0)[:2] == ["a0", "a2"]


@pytest.mark.parametrize("seed", range(4))
def test_random_joins_leaves_and_places_keep_order_and_lose_nobody(seed: int) -> None:
    random, line = Random(seed), Line[None]()
    here: dict[str, Waiter[None]] = {}
    for step in range(3000):
        move = random.random()
        if move < 0.5:
            fields = {
                "adapter": random.choice([None, "x", "y"]),
                "tried": frozenset(random.sample("ab", k=random.randrange(2))),
                "arrived": float(random.randrange(50)),
                "deadline": float(random.randrange(50, 200)),
                "sequence": step,
                "standing": standing(random.choice("stuvw"), random.choice(list(Band)), random.choice([1.0, 2.0])),
            }
            here[str(step)] = join(line, str(step), **fields)
        elif move < 0.7 and here:
            line.leave(here.pop(random.choice(list(here))))
        elif move < 0.75:
            line.settle(line.flows.get(standing(random.choice("stuvw"))), random.uniform(0, 100), 50.0, 1.0)
        else:
            _serve_some(line, here, random)
        assert len(line) == len(here)
        assert line.oldest is min(here.values(), key=lambda waiter: waiter.sequence, default=None)
        assert sum(flow.num_waiting for flow in line.flows) == len(here)
    assert sorted(drain(line)) == sorted(here)
    assert repr(line) == "<Line 0 waiting in 0 lanes>"


def _serve_some(line: Line[None], here: dict[str, Waiter[None]], random: Random) -> None:
    """Every place goes to whom it is due, among those whom it fits."""
    blocked, num_places = random.choice([None, "x", "y"]), random.randrange(1, 4)
    num_served = 0

    def fits(waiter: Waiter[None]) -> bool:
        return blocked is None or waiter.demand.adapter != blocked

    def serve(waiter: Waiter[None]) -> bool:
        nonlocal num_served
        if num_served == num_places or not fits(waiter):
            return False
        num_served += 1
        _check_turn(line, here, waiter, fits)
        line.serve(line.flows.get(waiter.standing), waiter.band, random.uniform(1.0, 100.0), 0.0)
        assert here.pop(waiter.demand.request.id) is waiter
        return True

    num_fitting = sum(map(fits, here.values()))
    line.advance(serve)
    assert num_served == min(num_places, num_fitting)


def _check_turn(
    line: Line[None], here: dict[str, Waiter[None]], chosen: Waiter[None], fits: Callable[[Waiter[None]], bool]
) -> None:
    turns = {rank: turn for turn, rank in enumerate(line._order())}
    fitting = [waiter for waiter in here.values() if fits(waiter)]

    def key(waiter: Waiter[None]) -> tuple[int, float]:
        return turns[waiter.band], line.flows.get(waiter.standing).counter

    assert key(chosen) == min(map(key, fitting))
    peers = [
        (waiter.due, waiter.sequence)
        for waiter in fitting
        if (waiter.standing.tenant, waiter.band, waiter.limits) == (chosen.standing.tenant, chosen.band, chosen.limits)
    ]
    assert (chosen.due, chosen.sequence) == min(peers)
