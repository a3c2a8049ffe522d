"""The least recently used runs of modelled replicas."""

from array import array

from router.prefix.recency import Recency
from router.prefix.runs import Run


def run(parent: Run | None = None, holders: int = 3) -> Run:
    return Run(array("Q", [1]), 0 if parent is None else parent.end, parent, holders)


def test_the_longest_unused_run_of_each_replica_is_its_own() -> None:
    recency, first, second = Recency(), run(), run()
    recency.limit(1, 10)
    recency.limit(2, 20)
    for bit, each in [(1, first), (1, second), (2, second), (2, first), (1, first)]:
        recency.use(bit, each)
    assert recency.oldest(1) is second
    assert recency.oldest(2) is second
    recency.age(2, first)
    assert recency.oldest(2) is first
    assert recency.num_entries == 4
    recency.drop(second, 1)
    assert recency.oldest(1) is first
    assert (recency.num_entries, recency.modelled) == (3, 3)
    recency.forget(2)
    assert (recency.num_entries, recency.modelled, recency.capacity(2)) == (1, 1, None)
    assert repr(recency) == "<Recency of 1 replicas, 1 entries>"


def test_a_split_counts_as_used_with_all_that_leads_to_it_for_those_who_hold_it() -> None:
    recency = Recency()
    recency.limit(1, 10)
    recency.limit(2, 10)
    root = run()
    head = run(root, holders=1)
    other = run()
    for each in (root, other):
        recency.use(1, each)
        recency.use(2, each)
    recency.split(head)
    assert recency.oldest(1) is other
    assert recency.oldest(2) is root


def test_a_limit_that_is_lifted_models_no_more() -> None:
    recency = Recency()
    recency.limit(1, 10)
    recency.use(1, run())
    recency.limit(1, None)
    assert (recency.modelled, recency.num_entries) == (0, 0)
