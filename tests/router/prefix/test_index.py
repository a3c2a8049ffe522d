"""The prefix index against a naive model, under its cap, and while replicas come and go."""

import random
import tracemalloc
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.blockhash import block_hashes
from router.prefix.index import TIDIED_PER_INSERT, BlockIndex
from router.prefix.tree import BLOCK_BYTES, RUN_BYTES

Chain = tuple[int, ...]


def index(max_blocks: int) -> BlockIndex:
    """With room for so many blocks, each in a run of its own."""
    return BlockIndex(max_blocks * (BLOCK_BYTES + RUN_BYTES))


def chain(*tokens: int) -> list[int]:
    """As real ones are: a hash stands for all tokens up to it."""
    return block_hashes(tokens, 1)


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


def check(blocks: BlockIndex) -> None:
    """Each run is used after those behind it, its blocks lead to it, and the counts are those of the runs."""
    tree = blocks._tree
    runs = list(tree.by_use)
    children = Counter(run.parent for run in runs if run.parent is not None)
    held: Counter[str] = Counter()
    for at, run in enumerate(runs):
        assert run.blocks
        assert len(tree.children(run)) == children[run]
        assert all(child.parent is run for child in tree.children(run))
        assert all(tree.runs[block] is run for block in run.blocks)
        if run.parent is not None:
            assert run.parent in runs[at + 1 :]
            assert run.start == run.parent.end
            assert not run.holders & ~run.parent.holders & blocks._replicas.live
        for name in blocks._replicas.names(run.holders & blocks._replicas.live):
            held[name] += len(run.blocks)
    assert sum(len(run.blocks) for run in runs) == blocks.total_blocks
    assert all(blocks.num_blocks(name) == held[name] for name in held | Counter(blocks._replicas._positions.keys()))
    assert blocks.num_bytes <= blocks.max_bytes


def reachable(blocks: BlockIndex, chains: list[Chain]) -> dict[str, set[int]]:
    """The blocks of each replica that a match can find."""
    found: dict[str, set[int]] = defaultdict(set)
    for chain in chains:
        for replica, depth in blocks.match(chain).items():
            found[replica].update(chain[:depth])
    return found


def test_a_match_counts_leading_blocks_and_leaves_out_who_holds_none() -> None:
    blocks = index(100)
    blocks.insert("a", chain(1, 2, 3))
    blocks.insert("b", chain(1, 2))
    blocks.insert("c", chain(9))
    assert blocks.match(chain(1, 2, 3, 4)) == {"a": 3, "b": 2}
    assert blocks.match(chain(1, 7, 3)) == {"a": 1, "b": 1}
    assert blocks.match(chain(5, 1)) == {}
    assert blocks.match([]) == {}


def test_a_chain_that_diverges_in_the_middle_of_another_is_its_own() -> None:
    blocks = index(100)
    blocks.insert("a", chain(1, 2, 3, 4))
    blocks.insert("b", chain(1, 9, 3, 4))
    assert blocks.match(chain(1, 2, 3, 4)) == {"a": 4, "b": 1}
    assert blocks.match(chain(1, 9, 3, 4)) == {"a": 1, "b": 4}
    blocks.insert("c", chain(1, 2, 3))
    assert blocks.match(chain(1, 2, 3, 4)) == {"a": 4, "b": 1, "c": 3}
    assert repr(blocks) == "<BlockIndex 7 blocks in 4 runs, 3 replicas in 3 bits>"


def test_a_growing_chain_stays_one_run() -> None:
    blocks = index(100)
    for length in range(1, 60):
        blocks.insert("a", chain(*range(length)))
    assert repr(blocks) == "<BlockIndex 59 blocks in 1 runs, 1 replicas in 1 bits>"
    assert blocks.match(chain(*range(99))) == {"a": 59}


def test_arrays_are_as_good_as_lists() -> None:
    blocks = index(100)
    blocks.insert("a", array("Q", chain(1, 2, 3)))
    assert blocks.match(chain(1, 2)) == {"a": 2}
    blocks.insert("b", chain(1, 2, 3, 4))
    assert blocks.match(array("Q", chain(1, 2, 3, 4))) == {"a": 3, "b": 4}


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
        check(blocks)
        found = reachable(blocks, chains)
        assert {r: blocks.num_blocks(r) for r in replicas} == {r: len(found.get(r, ())) for r in replicas}


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 6), max_size=5)), max_size=40))
def test_lists_that_are_no_chains_do_no_harm(inserts: list[tuple[int, list[int]]]) -> None:
    blocks = index(5)
    for replica, hashes in inserts:
        blocks.insert(f"r{replica}", hashes)
        assert all(depth <= len(hashes) for depth in blocks.match(hashes).values())
        check(blocks)
    for at in range(20):
        blocks.insert("other", [100 + at])
    check(blocks)


def test_what_is_used_stays_and_tails_go_before_heads() -> None:
    blocks, fresh = BlockIndex(1600 * BLOCK_BYTES + 260 * RUN_BYTES), iter(range(10**6, 10**7))
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
    assert len(set(depths)) > 15
    assert depths[-1] == 0


def test_a_block_that_only_the_older_replica_used_lives_on_with_the_newer() -> None:
    blocks, fresh = index(160), iter(range(10**6, 10**7))
    for _ in range(100):
        blocks.insert("b", [1, 2, 3])
        blocks.insert("a", [next(fresh) for _ in range(9)])
    assert blocks.match([1, 2, 3]) == {"b": 3}


def test_a_chain_longer_than_the_cap_keeps_its_head() -> None:
    blocks = BlockIndex(RUN_BYTES + 10 * BLOCK_BYTES)
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
    num_runs = 3 * TIDIED_PER_INSERT
    for at in range(num_runs):
        blocks.insert("a", chain(at))
    blocks.insert("b", chain(0))
    blocks.remove("a")
    blocks.insert("b", chain(0))
    assert num_runs - TIDIED_PER_INSERT <= blocks.total_blocks < num_runs
    for _ in range(4):
        blocks.insert("b", chain(0))
    assert blocks.total_blocks == 1
    blocks.insert("c", chain(0, 2))
    assert repr(blocks) == "<BlockIndex 2 blocks in 2 runs, 2 replicas in 2 bits>"
    assert blocks.match(chain(0, 2, 3)) == {"b": 1, "c": 2}


def test_what_is_added_while_a_replica_is_swept_has_no_trace_of_it() -> None:
    rng, blocks = random.Random(5), index(10_000)
    chains = random_chains(rng, 300)
    for chain_ in chains:
        blocks.insert("gone", chain_)
    blocks.remove("gone")
    for turn in range(300):
        blocks.insert(f"r{turn % 3}", rng.choice(chains)[: rng.randint(0, 20)])
        check(blocks)
    blocks.insert("new", chains[-1][:1])
    assert {blocks.match(chain_).get("new", 0) for chain_ in chains} <= {0, 1}


def test_replicas_that_come_and_go_for_days_need_no_more_bits() -> None:
    rng, blocks = random.Random(1), index(2000)
    chains = random_chains(rng, 50)
    for life in range(500):
        for _ in range(5):
            blocks.insert(f"r{life}", rng.choice(chains))
            blocks.insert("steady", rng.choice(chains))
        blocks.remove(f"r{life}")
    assert blocks.match(chains[7]).keys() <= {"steady"}
    assert int(repr(blocks).split(" in ")[-1].split()[0]) < 10


@pytest.mark.parametrize(("num_blocks", "length"), [(20_000, 100), (22_000, 100), (40_000, 30), (20_000, 1)])
def test_the_index_takes_what_it_is_reckoned_at_or_less(num_blocks: int, length: int) -> None:
    rng, blocks = random.Random(2), BlockIndex(num_blocks * BLOCK_BYTES + num_blocks // length * RUN_BYTES)
    tracemalloc.start()
    try:
        for at in range(num_blocks // length * 2):
            blocks.insert(f"r{at % 64}", [rng.getrandbits(64) for _ in range(length)])
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert blocks.total_blocks > num_blocks * 0.95
    assert blocks.num_bytes / 2.5 < traced < blocks.num_bytes


def test_a_cap_below_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        BlockIndex(BLOCK_BYTES)
