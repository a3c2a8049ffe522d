"""The prefix index against a naive model, under its cap, and while replicas come and go."""

import random
import tracemalloc
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prefix.index import BLOCK_BYTES, TIDIED_PER_INSERT, USE_BYTES, BlockIndex

Chain = tuple[int, ...]


def index(max_blocks: int) -> BlockIndex:
    return BlockIndex(max_blocks * (BLOCK_BYTES + USE_BYTES))


def random_chains(rng: random.Random, num_chains: int, max_length: int = 12) -> list[Chain]:
    """Chains that share prefixes as conversations do: each grows from a prefix of an earlier one."""
    chains: list[Chain] = [()]
    for _ in range(num_chains):
        start = rng.choice(chains)
        grown = start[: rng.randint(0, len(start))]
        chains.append(grown + tuple(rng.getrandbits(64) for _ in range(rng.randint(1, max_length))))
    return chains


class NaiveIndex:
    """What the index must answer, without a cap: a set of blocks per replica."""

    def __init__(self) -> None:
        self.held: dict[str, set[int]] = defaultdict(set)

    def match(self, chain: Sequence[int]) -> dict[str, int]:
        depths = {replica: self._depth(blocks, chain) for replica, blocks in self.held.items()}
        return {replica: depth for replica, depth in depths.items() if depth}

    def _depth(self, blocks: set[int], chain: Sequence[int]) -> int:
        return next((depth for depth, block in enumerate(chain) if block not in blocks), len(chain))


def reachable(blocks: BlockIndex, chains: list[Chain]) -> dict[str, set[int]]:
    """The blocks of each replica that a match can find."""
    found: dict[str, set[int]] = defaultdict(set)
    for chain in chains:
        for replica, depth in blocks.match(chain).items():
            found[replica].update(chain[:depth])
    return found


def test_a_match_counts_leading_blocks_and_leaves_out_who_holds_none() -> None:
    blocks = index(100)
    blocks.insert("a", [1, 2, 3])
    blocks.insert("b", [1, 2])
    blocks.insert("c", [9])
    assert blocks.match([1, 2, 3, 4]) == {"a": 3, "b": 2}
    assert blocks.match([1, 7, 3]) == {"a": 1, "b": 1}
    assert blocks.match([5, 1]) == {}
    assert blocks.match([]) == {}


def test_a_block_known_beyond_a_diverging_middle_does_not_count() -> None:
    blocks = index(100)
    blocks.insert("a", [1, 2, 3, 4])
    blocks.insert("b", [1, 9, 3, 4])
    assert blocks.match([1, 2, 3, 4]) == {"a": 4, "b": 1}
    assert blocks.match([1, 9, 3, 4]) == {"a": 1, "b": 4}


@pytest.mark.parametrize("seed", range(8))
def test_without_pressure_it_answers_as_a_set_of_blocks_per_replica_would(seed: int) -> None:
    rng, blocks, naive = random.Random(seed), index(100_000), NaiveIndex()
    chains, replicas = random_chains(rng, 60), [f"r{i}" for i in range(70)]
    for _ in range(1500):
        replica, chain = rng.choice(replicas), rng.choice(chains)
        if rng.random() < 0.1:
            blocks.remove(replica)
            naive.held.pop(replica, None)
        else:
            blocks.insert(replica, chain)
            naive.held[replica].update(chain)
        probe = rng.choice(chains)
        assert blocks.match(probe) == naive.match(probe)
        assert blocks.num_blocks(replica) == len(naive.held.get(replica, ()))
    assert {replica: blocks.num_blocks(replica) for replica in replicas} == {
        replica: len(naive.held.get(replica, ())) for replica in replicas
    }


@pytest.mark.parametrize("seed", range(8))
def test_under_pressure_every_block_counted_can_be_reached_from_its_head(seed: int) -> None:
    rng = random.Random(seed)
    blocks = index(rng.choice([1, 7, 40, 150]))
    chains, replicas = random_chains(rng, 40), [f"r{i}" for i in range(rng.choice([2, 9]))]
    for _ in range(400):
        if rng.random() < 0.05:
            blocks.remove(rng.choice(replicas))
        else:
            blocks.insert(rng.choice(replicas), rng.choice(chains))
        assert blocks.total_blocks * (BLOCK_BYTES + USE_BYTES) <= blocks.num_bytes <= blocks.max_bytes
        found = reachable(blocks, chains)
        assert {r: blocks.num_blocks(r) for r in replicas} == {r: len(found.get(r, ())) for r in replicas}


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 6), max_size=5)), max_size=40))
def test_counts_hold_even_for_lists_that_are_no_chains(inserts: list[tuple[int, list[int]]]) -> None:
    blocks, naive = index(1000), NaiveIndex()
    for replica, chain in inserts:
        blocks.insert(f"r{replica}", chain)
        naive.held[f"r{replica}"].update(chain)
        assert blocks.match(chain) == naive.match(chain)
    assert all(blocks.num_blocks(replica) == len(held) for replica, held in naive.held.items())


def test_what_is_used_stays_and_tails_go_before_heads() -> None:
    blocks, fresh = index(1600), iter(range(10**6, 10**7))
    kept, left = tuple(range(1, 101)), tuple(range(201, 301))
    blocks.insert("a", left)
    for _ in range(250):
        blocks.insert("a", kept)
        blocks.insert("b", [next(fresh) for _ in range(5)])
    assert blocks.match(kept) == {"a": 100}
    depths = [100]
    for _ in range(400):
        blocks.insert("a", kept)
        blocks.insert("b", [next(fresh)])
        depths.append(blocks.match(left).get("a", 0))
    assert blocks.match(kept) == {"a": 100}
    assert sorted(depths, reverse=True) == depths
    assert len(set(depths)) > 20
    assert depths[-1] == 0


def test_a_block_that_only_the_older_replica_used_lives_on_with_the_newer() -> None:
    blocks, fresh = index(160), iter(range(10**6, 10**7))
    for _ in range(100):
        blocks.insert("b", [1, 2, 3])
        blocks.insert("a", [next(fresh) for _ in range(9)])
    assert blocks.match([1, 2, 3]) == {"b": 3}


def test_hot_blocks_neither_crowd_out_idle_ones_nor_pile_up_uses() -> None:
    blocks = index(150)
    blocks.insert("a", [1, 2, 3])
    chains = [tuple(range(start, start + 30)) for start in (10, 40, 70)]
    most_bytes = 0
    for turn in range(1000):
        blocks.insert("a", chains[turn % 3])
        most_bytes = max(most_bytes, blocks.num_bytes)
    assert blocks.match([1, 2, 3]) == {"a": 3}
    assert blocks.num_blocks("a") == 93
    assert most_bytes < blocks.max_bytes


def test_a_chain_longer_than_the_cap_keeps_its_head() -> None:
    blocks = index(10)
    blocks.insert("a", range(1, 31))
    assert blocks.match(range(1, 31)) == {"a": 10}
    assert blocks.num_blocks("a") == 10


def test_a_removed_replica_is_forgotten_at_once_and_may_return_empty() -> None:
    blocks = index(100)
    blocks.insert("a", [1, 2, 3])
    blocks.insert("b", [1, 2])
    blocks.remove("a")
    blocks.remove("never seen")
    assert blocks.match([1, 2, 3]) == {"b": 2}
    assert blocks.num_blocks("a") == 0
    blocks.insert("a", [1])
    assert blocks.match([1, 2, 3]) == {"a": 1, "b": 2}
    assert (blocks.num_blocks("a"), blocks.num_blocks("b")) == (1, 2)


def test_a_removed_replica_is_swept_in_slices_and_its_bit_used_again() -> None:
    blocks = index(10_000)
    num_blocks = 3 * TIDIED_PER_INSERT
    blocks.insert("a", range(1, num_blocks + 1))
    blocks.insert("b", [1])
    blocks.remove("a")
    blocks.insert("b", [1])
    assert num_blocks - TIDIED_PER_INSERT <= blocks.total_blocks < num_blocks
    for _ in range(4):
        blocks.insert("b", [1])
    assert blocks.total_blocks == 1
    blocks.insert("c", [1, 2])
    assert repr(blocks) == "<BlockIndex 2 blocks, 2 replicas in 2 bits>"
    assert blocks.match([1, 2, 3]) == {"b": 1, "c": 2}


def test_replicas_that_come_and_go_for_days_need_no_more_bits() -> None:
    rng, blocks = random.Random(1), index(2000)
    chains = random_chains(rng, 50)
    for life in range(500):
        for _ in range(5):
            blocks.insert(f"r{life}", rng.choice(chains))
            blocks.insert("steady", rng.choice(chains))
        blocks.remove(f"r{life}")
    assert blocks.match(chains[7]).keys() <= {"steady"}
    assert int(repr(blocks).split(" in ")[1].split()[0]) < 10


@pytest.mark.parametrize("num_blocks", [20_000, 22_000, 40_000])
def test_the_index_takes_what_it_is_reckoned_at_or_less(num_blocks: int) -> None:
    rng, blocks = random.Random(2), index(num_blocks)
    tracemalloc.start()
    try:
        for at in range(num_blocks // 100 * 2):
            blocks.insert(f"r{at % 64}", [rng.getrandbits(64) for _ in range(100)])
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert blocks.total_blocks > num_blocks * 0.95
    assert blocks.num_bytes / 2 < traced < blocks.num_bytes


def test_a_cap_below_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        BlockIndex(BLOCK_BYTES)
