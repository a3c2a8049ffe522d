"""What replicas say of their caches, in the index: against a naive model, in any order, with two kinds of memory; and
guesses, taken back or forgotten as a modelled cache would."""

import random
from array import array
from collections import defaultdict
from collections.abc import Sequence

import pytest

from router.prefix.index import BlockIndex
from tests.router.prefix.test_index import Chain, chain, check, index, random_chains


class NaiveFacts:
    """A set of blocks per replica and memory; only what begins at a prompt's beginning counts."""

    def __init__(self) -> None:
        self.device: dict[str, set[int]] = defaultdict(set)
        self.host: dict[str, set[int]] = defaultdict(set)

    def of(self, is_host: bool) -> dict[str, set[int]]:
        return self.host if is_host else self.device

    def match(self, chain: Sequence[int], *, only_device: bool = False) -> dict[str, int]:
        found = {}
        for replica in {*self.device, *self.host}:
            held = self.device[replica] | (set() if only_device else self.host[replica])
            depth = next((at for at, block in enumerate(chain) if block not in held), len(chain))
            if depth:
                found[replica] = depth
        return found


def packed(blocks: Sequence[int]) -> bytes:
    return array("Q", blocks).tobytes()


@pytest.mark.parametrize("seed", range(12))
def test_facts_in_any_order_answer_as_a_set_of_blocks_per_replica_would(seed: int) -> None:
    """Blocks come behind what is there or not, go from the middle, and come back."""
    rng, blocks, naive = random.Random(seed), index(100_000), NaiveFacts()
    chains, replicas = random_chains(rng, 30), [f"r{at}" for at in range(rng.choice([2, 6, 40]))]
    for step in range(1200):
        replica, picked, is_host = rng.choice(replicas), rng.choice(chains), rng.random() < 0.2
        held = naive.of(is_host)[replica]
        if rng.random() < 0.02:
            blocks.remove(replica)
            naive.device.pop(replica, None)
            naive.host.pop(replica, None)
        elif rng.random() < 0.45 and held:
            gone = rng.sample(sorted(held), min(len(held), rng.randint(1, 5)))
            blocks.drop(replica, gone, is_host=is_host)
            held.difference_update(gone)
        elif picked:
            begin = rng.randrange(len(picked))
            end = rng.randint(begin + 1, len(picked))
            parent = picked[begin - 1] if begin else None
            if parent is None or parent in blocks._tree.runs:
                held.update(picked[begin:end])
            blocks.store(replica, parent, picked[begin:end], is_host=is_host)
        probe = rng.choice(chains)
        assert blocks.match(probe) == naive.match(probe)
        assert blocks.match_device(probe, blocks.match(probe)) == naive.match(probe, only_device=True)
        if step % 20 == 0:
            check(blocks)


def test_only_blocks_that_lead_from_the_beginning_count() -> None:
    blocks = index(100)
    blocks.store("a", None, chain(1, 2, 3, 4))
    blocks.store("b", None, chain(1, 2, 3, 4))
    blocks.drop("a", [chain(1, 2)[-1]])
    assert blocks.match(chain(1, 2, 3, 4)) == {"a": 1, "b": 4}
    assert blocks.num_blocks("a") == 1
    blocks.store("a", chain(1)[0], [chain(1, 2)[-1]])
    assert blocks.match(chain(1, 2, 3, 4)) == {"a": 4, "b": 4}


def test_what_follows_an_unknown_block_is_never_placed_at_the_beginning() -> None:
    blocks = index(100)
    blocks.store("a", 12345, chain(1, 2, 3))
    assert blocks.match(chain(1, 2, 3)) == {}
    assert blocks.total_blocks == 0


def test_a_cache_that_is_freed_from_its_tails_leaves_no_run_for_each_block() -> None:
    """64 replicas hold one conversation; one of them loses it block by block."""
    blocks, whole = index(10_000), chain(*range(128))
    for at in range(64):
        blocks.store(f"r{at}", None, whole)
    for at in reversed(range(10, 128)):
        blocks.drop("r7", [whole[at]])
    assert blocks.match(whole) == {f"r{at}": 128 for at in range(64)} | {"r7": 10}
    assert repr(blocks) == "<BlockIndex 128 blocks in 2 runs, 64 replicas in 64 bits>"


def test_blocks_that_come_one_by_one_or_in_pieces_are_one_run() -> None:
    blocks, whole = index(1000), chain(*range(40))
    blocks.insert("a", whole)
    for at in range(0, 40, 4):
        blocks.store("a", whole[at - 1] if at else None, whole[at : at + 4])
    assert repr(blocks) == "<BlockIndex 40 blocks in 1 runs, 1 replicas in 1 bits>"
    for at in range(20):
        whole = chain(*range(41 + at))
        blocks.store("a", whole[-2], whole[-1:])
    assert repr(blocks) == "<BlockIndex 60 blocks in 1 runs, 1 replicas in 1 bits>"


def test_a_guess_that_did_not_come_true_is_taken_back_and_facts_stay() -> None:
    blocks, whole = index(1000), chain(*range(20))
    blocks.store("a", None, whole[:8])
    blocks.insert("a", whole)
    blocks.insert("b", whole[:12])
    assert blocks.match(whole) == {"a": 20, "b": 12}
    blocks.retract("a", whole, 8)
    blocks.retract("never seen", whole)
    assert blocks.match(whole) == {"a": 8, "b": 12}
    blocks.insert("a", whole)
    blocks.store("a", whole[7], whole[8:20])
    blocks.retract("a", whole, 8)
    assert blocks.match(whole) == {"a": 20, "b": 12}
    check(blocks)


def test_a_guess_on_top_of_a_guess_is_taken_back_alone() -> None:
    blocks = index(1000)
    blocks.insert("a", chain(1, 2, 3))
    blocks.insert("a", chain(1, 2, 3, 4, 5))
    blocks.retract("a", chain(1, 2, 3, 4, 5), 3)
    assert blocks.match(chain(1, 2, 3, 4, 5)) == {"a": 3}


def test_is_told_tells_facts_from_guesses() -> None:
    blocks = index(100)
    blocks.insert("a", chain(1, 2))
    assert not blocks.is_told("a", chain(1, 2)[-1])
    blocks.store("a", None, chain(1, 2), is_host=True)
    assert blocks.is_told("a", chain(1, 2)[-1])
    assert not blocks.is_told("b", chain(1, 2)[-1])
    assert not blocks.is_told("a", 5)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_made_from_the_facts_of_each_replica_answers_alike(seed: int) -> None:
    rng, blocks = random.Random(seed), index(100_000)
    chains, replicas = random_chains(rng, 40), ["a", "b", "c"]
    for _ in range(200):
        picked, replica, is_host = rng.choice(chains), rng.choice(replicas), rng.random() < 0.2
        blocks.store(replica, None, picked, is_host=is_host)
        blocks.drop(replica, rng.sample(picked, min(len(picked), 2)), is_host=is_host)
    copy = index(100_000)
    for replica in replicas:
        for parent, held, is_host in blocks.facts(replica):
            copy.store(replica, parent, array("Q", held), is_host=is_host)
    for picked in chains:
        assert copy.match(picked) == blocks.match(picked)
        assert copy.match_device(picked, copy.match(picked)) == blocks.match_device(picked, blocks.match(picked))


def test_host_memory_counts_apart_from_the_device() -> None:
    blocks, whole = index(100), chain(*range(10))
    blocks.store("a", None, whole[:4])
    blocks.store("a", whole[3], whole[4:10], is_host=True)
    blocks.store("b", None, whole[:6])
    assert blocks.match(whole) == {"a": 10, "b": 6}
    assert blocks.match_device(whole, blocks.match(whole)) == {"a": 4, "b": 6}
    blocks.drop("a", whole[:4])
    assert blocks.match(whole) == {"b": 6}


def test_a_modelled_cache_forgets_the_longest_unused_from_its_tail() -> None:
    blocks = index(1000)
    blocks.limit("a", 10)
    blocks.insert("a", chain(1, 2, 3, 4, 5, 6))
    blocks.insert("b", chain(1, 2, 3, 4, 5, 6))
    blocks.insert("a", chain(9, 8, 7))
    blocks.insert("a", chain(11, 12, 13))
    assert blocks.num_blocks("a") == 10
    assert blocks.match(chain(1, 2, 3, 4, 5, 6)) == {"a": 4, "b": 6}
    blocks.insert("a", chain(9, 8, 7))
    blocks.insert("a", chain(21, 22, 23, 24, 25))
    assert blocks.match(chain(1, 2, 3, 4, 5, 6)) == {"b": 6}
    assert blocks.match(chain(11, 12, 13)) == {"a": 2}
    assert blocks.match(chain(9, 8, 7)) == {"a": 3}
    assert blocks.capacity("a") == 10
    assert blocks.capacity("b") is None
    check(blocks)


@pytest.mark.parametrize("seed", range(6))
def test_a_modelled_cache_holds_what_an_lru_of_blocks_would(seed: int) -> None:
    """Within the blocks of one prompt: where two end at the same time, either may go first."""
    rng, blocks, capacity = random.Random(seed), index(100_000), 60
    chains = [each for each in random_chains(rng, 40) if each and len(each) <= capacity]
    used: dict[int, int] = {}
    blocks.limit("a", capacity)
    for turn in range(500):
        picked = rng.choice(chains)
        blocks.insert("a", picked)
        blocks.insert("b", rng.choice(chains))
        for at, block in enumerate(picked):
            used[block] = turn * 1000 + len(picked) - at
        for block in sorted(used, key=lambda block: used[block])[: max(0, len(used) - capacity)]:
            del used[block]
        assert blocks.num_blocks("a") <= capacity
        assert blocks.match(picked)["a"] == len(picked)
    check(blocks)
    held = {block for each in chains for block in each[: blocks.match(each).get("a", 0)]}
    assert len(held & used.keys()) >= 0.7 * len(used)


def test_a_replica_that_begins_to_tell_is_modelled_no_more() -> None:
    blocks = index(1000)
    blocks.insert("a", chain(*range(20)))
    blocks.limit("a", 10)
    assert blocks.num_blocks("a") == 10
    blocks.limit("a", None)
    blocks.insert("a", chain(*range(20)))
    assert blocks.match(chain(*range(20))) == {"a": 20}


@pytest.mark.parametrize("seed", range(4))
def test_guesses_facts_and_limits_together_leave_a_sound_tree(seed: int) -> None:
    rng = random.Random(seed)
    blocks = index(rng.choice([30, 300]))
    chains: list[Chain] = random_chains(rng, 40)
    for _ in range(600):
        replica, picked, turn = f"r{rng.randrange(5)}", rng.choice(chains), rng.random()
        if turn < 0.3:
            blocks.insert(replica, picked)
        elif turn < 0.6:
            at = rng.randint(0, len(picked))
            blocks.store(replica, picked[at - 1] if at else None, picked[at:], is_host=rng.random() < 0.3)
        elif turn < 0.8:
            blocks.drop(replica, rng.sample(picked, len(picked) // 2), is_host=rng.random() < 0.3)
        elif turn < 0.9:
            blocks.retract(replica, picked, rng.randint(0, 4))
        elif turn < 0.95:
            blocks.limit(replica, rng.choice([None, 5, 50]))
        else:
            blocks.remove(replica)
        check(blocks)
        assert blocks.num_bytes <= blocks.max_bytes


def test_a_removed_replica_tells_anew_from_nothing() -> None:
    blocks: BlockIndex = index(100)
    blocks.store("a", None, chain(1, 2, 3))
    blocks.drop("a", chain(1))
    blocks.remove("a")
    blocks.store("a", None, chain(1))
    assert blocks.match(chain(1, 2, 3)) == {"a": 1}
    assert packed([1]) == b"\x01" + bytes(7)
