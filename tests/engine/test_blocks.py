from dataclasses import dataclass, field
from random import Random

import pytest

from engine.blocks import BlockPool, OutOfBlocks
from pointsman.blockhash import block_hashes

SIZE = 4


def publish(pool: BlockPool, table: list[int], tokens: list[int], salt: str | None = None) -> None:
    for index, block_hash in enumerate(block_hashes(tokens, SIZE, salt=salt)[: len(table)]):
        pool.publish(table, index, block_hash, tokens, salt)


def match(pool: BlockPool, tokens: list[int], salt: str | None = None) -> list[int]:
    return pool.match(block_hashes(tokens, SIZE, salt=salt), tokens, salt)


def test_a_published_prefix_is_found_as_far_as_it_goes() -> None:
    pool = BlockPool(8, SIZE)
    table = pool.allocate(3)
    publish(pool, table, list(range(12)))
    assert match(pool, [*range(8), 99, 98, 97, 96]) == table[:2]
    assert match(pool, [5, *range(1, 12)]) == []


def test_another_salt_finds_nothing() -> None:
    pool = BlockPool(8, SIZE)
    publish(pool, pool.allocate(2), list(range(8)), salt="a")
    assert match(pool, list(range(8)), salt="b") == []
    assert match(pool, list(range(8))) == []


@pytest.mark.parametrize("wrong", ["tokens", "parent", "salt"])
def test_a_forced_hash_collision_never_serves_foreign_kv(wrong: str) -> None:
    pool = BlockPool(8, SIZE)
    table = pool.allocate(2)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    for index, block_hash in enumerate([11, 22]):
        pool.publish(table, index, block_hash, tokens, None)
    assert pool.match([11, 22], tokens, None) == table
    if wrong == "tokens":
        assert pool.match([11, 22], [1, 2, 3, 4, 5, 6, 7, 9], None) == table[:1]
    elif wrong == "parent":
        assert pool.match([22], [5, 6, 7, 8], None) == []
    else:
        assert pool.match([11, 22], tokens, "other") == []


def test_the_loser_of_a_collision_stays_private_with_all_that_follows_it() -> None:
    pool = BlockPool(8, SIZE)
    first, second = pool.allocate(1), pool.allocate(2)
    pool.publish(first, 0, 11, [1, 2, 3, 4], None)
    for index, block_hash in enumerate([11, 33]):
        pool.publish(second, index, block_hash, [5, 6, 7, 8, 9, 9, 9, 9], None)
    assert pool.match([11, 33], [5, 6, 7, 8, 9, 9, 9, 9], None) == []
    assert pool.match([11], [1, 2, 3, 4], None) == first
    pool.release(second)
    assert repr(pool) == "<BlockPool 7 free 1 used 0 cached>"


def test_a_twin_takes_the_cached_block_and_gives_back_its_own() -> None:
    pool = BlockPool(8, SIZE)
    tables = [pool.allocate(2), pool.allocate(2)]
    for table in tables:
        publish(pool, table, list(range(8)))
    assert tables[0] == tables[1]
    assert repr(pool) == "<BlockPool 6 free 2 used 0 cached>"
    pool.release(tables[0])
    assert pool.num_used == 2
    pool.release(tables[1])
    assert repr(pool) == "<BlockPool 6 free 0 used 2 cached>"


def test_freed_blocks_are_evicted_oldest_first_and_tails_before_heads() -> None:
    pool = BlockPool(4, SIZE)
    old, new = pool.allocate(2), pool.allocate(2)
    publish(pool, old, [1] * 8)
    publish(pool, new, [2] * 8)
    pool.release(old)
    pool.release(new)
    assert [pool.allocate(1)[0] for _ in range(4)] == [old[1], old[0], new[1], new[0]]


def test_a_prefix_that_was_used_again_outlives_an_older_one() -> None:
    pool = BlockPool(4, SIZE)
    old, new = pool.allocate(2), pool.allocate(2)
    publish(pool, old, [1] * 8)
    publish(pool, new, [2] * 8)
    pool.release(old)
    pool.release(new)
    pool.hold(old)
    pool.release(old)
    pool.allocate(2)
    assert match(pool, [1] * 8) == old
    assert match(pool, [2] * 8) == []


def test_too_large_a_demand_changes_nothing() -> None:
    pool = BlockPool(4, SIZE)
    table = pool.allocate(2)
    publish(pool, table, [1] * 8)
    pool.release(table)
    with pytest.raises(OutOfBlocks, match="5 blocks asked for"):
        pool.allocate(5)
    assert repr(pool) == "<BlockPool 2 free 0 used 2 cached>"
    assert pool.can_allocate(4)
    assert not pool.can_allocate(3, keeping=table)


@dataclass(eq=False)
class Chain:
    """What a sequence would keep: its tokens, its table, and what each held block must contain."""

    tokens: list[int]
    table: list[int] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(20))
def test_random_use_keeps_every_block_accounted_for_and_every_match_true(seed: int) -> None:
    random = Random(seed)
    pool = BlockPool(24, SIZE)
    written: dict[int, list[int]] = {}  # block -> the whole prefix whose KV it holds
    chains: list[Chain] = []
    for _ in range(400):
        if random.random() < 0.6:
            start(pool, random, chains, written)
        elif chains:
            pool.release(chains.pop(random.randrange(len(chains))).table)
        held = {block for chain in chains for block in chain.table}
        assert pool.num_used == len(held)
        assert pool.num_free + pool.num_used + pool.num_cached == pool.num_blocks
    for chain in chains:
        pool.release(chain.table)
    assert pool.num_used == 0


def start(pool: BlockPool, random: Random, chains: list[Chain], written: dict[int, list[int]]) -> None:
    chain = Chain([random.randrange(2) for _ in range(SIZE * random.randint(1, 5))])
    matched = match(pool, chain.tokens)
    for index, block in enumerate(matched):
        assert written[block] == chain.tokens[: (index + 1) * SIZE]
    missing = len(chain.tokens) // SIZE - len(matched)
    if not pool.can_allocate(missing, keeping=matched):
        return
    pool.hold(matched)
    chain.table = matched + pool.allocate(missing)
    for index in range(len(matched), len(chain.table)):
        written[chain.table[index]] = chain.tokens[: (index + 1) * SIZE]
    publish(pool, chain.table, chain.tokens)
    chains.append(chain)
