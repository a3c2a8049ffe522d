from collections.abc import Callable
from random import Random

from router.admission.line import MAX_MISSES, Line, Waiter
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


def drain(line: Line[None], fits: Callable[[Waiter[None]], bool] = lambda _: True) -> list[str]:
    """Advance until nothing more moves; who was served, in order."""
    served: list[str] = []

    def serve(waiter: Waiter[None]) -> bool:
        if fits(waiter):
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
    assert len(lane.heap) < 50


def test_random_joins_leaves_and_places_keep_order_and_lose_nobody() -> None:
    random, line = Random(11), Line[None]()
    here: dict[str, Waiter[None]] = {}
    for step in range(4000):
        move = random.random()
        if move < 0.5:
            fields = {
                "adapter": random.choice([None, "x", "y"]),
                "tried": frozenset(random.sample("ab", k=random.randrange(2))),
                "arrived": float(random.randrange(50)),
                "priority": random.randrange(3),
                "sequence": step,
            }
            here[str(step)] = join(line, str(step), **fields)
        elif move < 0.75 and here:
            line.leave(here.pop(random.choice(list(here))))
        else:
            blocked, num_places = random.choice([None, "x", "y"]), random.randrange(4)
            served: list[Waiter[None]] = []

            def serve(
                waiter: Waiter[None],
                blocked: str | None = blocked,
                num_places: int = num_places,
                served: list[Waiter[None]] = served,
            ) -> bool:
                fits = len(served) < num_places and (blocked is None or waiter.demand.adapter != blocked)
                if fits:
                    served.append(waiter)
                return fits

            could = sorted(
                (w for w in here.values() if blocked is None or w.demand.adapter != blocked), key=lambda w: w.key
            )
            line.advance(serve)
            assert served == could[:num_places]
            for waiter in served:
                assert here.pop(waiter.demand.request.id) is waiter
        assert len(line) == len(here)
        assert line.oldest is next(iter(here.values()), None)
    assert sorted(drain(line)) == sorted(here)
