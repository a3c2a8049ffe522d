"""Changes travel between processes, and come to the same index there."""

import random
from array import array

import msgspec
import pytest

from router.prefix.changes import Change, Emptied, Gone, Held, Shifted, apply, everything, gone, held, num_blocks
from router.prefix.index import BlockIndex
from tests.router.prefix.test_index import chain, random_chains


@pytest.mark.parametrize(
    ("change", "size"),
    [
        (held(None, [1, 2**64 - 1]), 2),
        (held(7, [1], is_host=True), 1),
        (gone([5, 6, 7]), 3),
        (Shifted(4, is_host=True), 1),
        (Emptied(), 1),
    ],
)
def test_a_change_survives_the_wire(change: Change, size: int) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=Change) == change
    assert num_blocks(change) == size


def test_blocks_are_packed_as_64_bits_each() -> None:
    assert held(None, [1, 2]) == Held(None, array("Q", [1, 2]).tobytes())
    assert gone([3], is_host=True) == Gone(array("Q", [3]).tobytes(), is_host=True)


def test_each_change_does_to_the_index_what_it_says() -> None:
    index, whole = BlockIndex(2**20), chain(1, 2, 3)
    apply(index, "a", held(None, whole[:2]))
    apply(index, "a", held(whole[1], whole[2:]))
    assert index.match(whole) == {"a": 3}
    apply(index, "a", Shifted(whole[2], is_host=True))
    assert index.match_device(whole, index.match(whole)) == {"a": 2}
    apply(index, "a", gone(whole[2:], is_host=True))
    assert index.match(whole) == {"a": 2}
    apply(index, "a", Shifted(whole[2], is_host=True))
    assert index.match(whole) == {"a": 2}
    apply(index, "a", Emptied())
    assert index.match(whole) == {}


@pytest.mark.parametrize("seed", range(4))
def test_everything_makes_another_index_know_the_same(seed: int) -> None:
    rng, index, copy = random.Random(seed), BlockIndex(2**22), BlockIndex(2**22)
    chains = random_chains(rng, 40)
    for each in chains:
        apply(index, "a", held(None, each, is_host=rng.random() < 0.3))
        apply(index, "a", gone(rng.sample(each, len(each) // 3)))
    apply(copy, "a", held(None, chain(9, 9, 9)))
    for change in everything(index, "a"):
        apply(copy, "a", change)
    for each in [*chains, tuple(chain(9, 9, 9))]:
        assert copy.match(each) == index.match(each)
