"""Uses of blocks in generations: order, counts, and lists that shrink while they are read."""

import random
from array import array

from router.prefix.uses import Uses


def test_the_oldest_generation_gives_its_last_use_first() -> None:
    uses = Uses()
    uses.record([1, 2, 3])
    uses.begin()
    uses.record([1, 4])
    assert list(uses.pop_oldest(2)) == [(3, 0), (2, 0)]
    assert list(uses.pop_oldest(9)) == [(1, 0)]
    assert list(uses.pop_oldest(9)) == [(4, 1), (1, 1)]
    assert (uses.total, repr(uses)) == (0, "<Uses 0 in 1 generations>")


def test_a_generation_begins_when_one_is_full() -> None:
    uses = Uses()
    for block in range(10):
        uses.begin_if_full(4)
        uses.record([block])
    assert uses.newest == 2
    assert [list(uses.listed(generation)) for generation in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]


def test_a_generation_that_shrinks_while_it_is_read_ends_early() -> None:
    uses = Uses()
    uses.record([1, 2, 3, 4])
    uses.begin()
    read = []
    for block in uses.listed(0):
        read.append(block)
        list(uses.pop_oldest(1))
    assert read == [1, 2]
    uses.replace(0, array("Q", [1]))
    assert (list(uses.listed(0)), uses.total) == ([1], 1)


def test_what_is_gone_stays_gone() -> None:
    uses = Uses()
    uses.record([1])
    assert uses.begin() == [0]
    list(uses.pop_oldest(1))
    uses.replace(0, array("Q", [1]))
    assert (list(uses.listed(0)), uses.total) == ([], 0)


def test_the_total_is_the_sum_of_all_lists() -> None:
    rng, uses = random.Random(4), Uses()
    for _ in range(2000):
        uses.begin_if_full(rng.randrange(1, 20))
        uses.record([rng.getrandbits(64) for _ in range(rng.randrange(4))])
        generation = rng.randrange(uses.newest + 1)
        if rng.random() < 0.2 and generation != uses.newest:
            uses.replace(generation, array("Q", uses.listed(generation)[::2]))
        if uses.total > 100:
            list(uses.pop_oldest(rng.randrange(1, 60)))
        assert uses.total == sum(len(uses.listed(generation)) for generation in range(uses.newest + 1))
