"""The orders within a flow: by turn and by age."""

from random import Random

from router.admission.waiters import Run, Trail, Waiter, due_of, standing_of
from router.core import Band
from tests.router.nouns import make_demand


def waiter(due: float, sequence: int) -> Waiter[None]:
    demand = make_demand(str(sequence))
    return Waiter(demand, None, standing_of(demand), 0.0, due, sequence)


def test_a_run_gives_its_waiters_by_due_then_sequence_whoever_leaves() -> None:
    random = Random(5)
    run: Run[None] = Run()
    here: list[Waiter[None]] = []
    for step in range(5000):
        move = random.random()
        if move < 0.5:
            here.append(waiter(float(random.randrange(40) + step // 100), step))
            run.push(here[-1])
        elif here:
            gone = run.head() if move < 0.8 else random.choice(here)
            if move < 0.8:
                assert gone is min(here, key=lambda each: (each.due, each.sequence))
            here.remove(gone)
            gone.has_left = True
            run.discard_one()
        assert run.num_waiting == len(here)
        assert len(run._in_order) + len(run._early) <= 2 * len(here) + 17


def test_equal_dues_go_in_the_order_in_which_they_came() -> None:
    run: Run[None] = Run()
    for sequence, due in enumerate([9.0, 5.0, 5.0, 9.0, 5.0]):
        run.push(waiter(due, sequence))
    served = []
    while run.num_waiting:
        head = run.head()
        served.append(head.sequence)
        head.has_left = True
        run.discard_one()
    assert served == [1, 2, 4, 0, 3]


def test_a_trail_knows_the_oldest_and_the_newest_who_are_still_here() -> None:
    random = Random(6)
    trail: Trail[None] = Trail()
    here: list[Waiter[None]] = []
    for step in range(5000):
        if random.random() < 0.52 or not here:
            here.append(waiter(0.0, step))
            trail.push(here[-1])
        else:
            gone = here.pop(random.choice([0, -1, random.randrange(len(here))]))
            gone.has_left = True
            trail.discard_one()
        assert trail.oldest() is (here[0] if here else None)
        assert trail.newest() is (here[-1] if here else None)
        assert trail.num_waiting == len(here)


def test_a_priority_of_the_body_is_a_band_and_an_order_within_it() -> None:
    bands = [standing_of(make_demand(priority=priority)).band for priority in (-5, -1, 0, 1, 2, 255)]
    assert bands == [Band.HIGH, Band.HIGH, Band.NORMAL, Band.LOW, Band.BULK, Band.BULK]
    dues = [due_of(make_demand(priority=priority, arrived=7.0)) for priority in (-2, -1, 0, 1, 2, 3)]
    assert dues == [27.0, 37.0, 37.0, 37.0, 37.0, 47.0]
