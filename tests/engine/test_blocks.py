from dataclasses import dataclass, field
from random import Random

import pytest

from engine.blocks import BlockPool, OutOfBlocks
from engine.prefixes import NO_SCOPE, Change, Cleared, Copy, Medium, Prefix, Removed, Scope, Stored
from pointsman.blockhash import block_hashes

SIZE = 4


def publish(pool: BlockPool, table: list[int], tokens: list[int], scope: Scope = NO_SCOPE) -> None:
    for index, block_hash in enumerate(hashes(tokens, scope)[: len(table)]):
        pool.publish(table, index, block_hash, tokens, scope)


def found(pool: BlockPool, tokens: list[int], scope: Scope = NO_SCOPE) -> list[Prefix]:
    return pool.match(hashes(tokens, scope), tokens, scope)


def match(pool: BlockPool, tokens: list[int], scope: Scope = NO_SCOPE) -> list[int | None]:
    return [prefix.block for prefix in found(pool, tokens, scope)]


def hashes(tokens: list[int], scope: Scope) -> list[int]:
    return block_hashes(tokens, SIZE, adapter=scope.adapter, salt=scope.salt)


def take_again(pool: BlockPool, tokens: list[int]) -> list[int]:
    """A table for `tokens`, of what is cached and of new blocks."""
    return pool.acquire(found(pool, tokens), pool.blocks_for(len(tokens)))


def test_a_published_prefix_is_found_as_far_as_it_goes() -> None:
    pool = BlockPool(8, SIZE)
    table = pool.allocate(3)
    publish(pool, table, list(range(12)))
    assert match(pool, [*range(8), 99, 98, 97, 96]) == table[:2]
    assert match(pool, [5, *range(1, 12)]) == []


@pytest.mark.parametrize("scope", [Scope(salt="a"), Scope(adapter="a", adapter_load=1)])
def test_another_scope_finds_nothing(scope: Scope) -> None:
    pool = BlockPool(8, SIZE)
    publish(pool, pool.allocate(2), list(range(8)), scope)
    for other in (NO_SCOPE, Scope(salt="b"), Scope(adapter="a", salt="a", adapter_load=1), Scope("a", None, 2)):
        assert match(pool, list(range(8)), other) == []
    assert len(match(pool, list(range(8)), scope)) == 2


@pytest.mark.parametrize("wrong", ["tokens", "parent", "salt", "adapter", "adapter load"])
def test_a_forced_hash_collision_never_serves_foreign_kv(wrong: str) -> None:
    pool = BlockPool(8, SIZE)
    table = pool.allocate(2)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    for index, block_hash in enumerate([11, 22]):
        pool.publish(table, index, block_hash, tokens, NO_SCOPE)
    assert [prefix.block for prefix in pool.match([11, 22], tokens, NO_SCOPE)] == table
    if wrong == "tokens":
        matched = pool.match([11, 22], [1, 2, 3, 4, 5, 6, 7, 9], NO_SCOPE)
        assert [prefix.block for prefix in matched] == table[:1]
    elif wrong == "parent":
        assert pool.match([22], [5, 6, 7, 8], NO_SCOPE) == []
    else:
        scopes = {"salt": Scope(salt="other"), "adapter": Scope(adapter="other"), "adapter load": Scope(adapter_load=1)}
        assert pool.match([11, 22], tokens, scopes[wrong]) == []


def test_the_loser_of_a_collision_stays_private_with_all_that_follows_it() -> None:
    pool = BlockPool(8, SIZE)
    first, second = pool.allocate(1), pool.allocate(2)
    pool.publish(first, 0, 11, [1, 2, 3, 4], NO_SCOPE)
    for index, block_hash in enumerate([11, 33]):
        pool.publish(second, index, block_hash, [5, 6, 7, 8, 9, 9, 9, 9], NO_SCOPE)
    assert pool.match([11, 33], [5, 6, 7, 8, 9, 9, 9, 9], NO_SCOPE) == []
    assert [prefix.block for prefix in pool.match([11], [1, 2, 3, 4], NO_SCOPE)] == first
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
    pool.release(take_again(pool, [1] * 8))
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
    matched = found(pool, [1] * 8)
    assert (pool.shortage(matched, 4), pool.shortage(matched, 5), pool.shortage([], 6)) == (0, 1, 2)
    with pytest.raises(OutOfBlocks, match="1 blocks too few"):
        pool.acquire(matched, 5)
    assert repr(pool) == "<BlockPool 2 free 0 used 2 cached>"


def test_a_twin_that_is_held_needs_no_room() -> None:
    pool = BlockPool(3, SIZE)
    table = pool.allocate(2)
    publish(pool, table, [1] * 8)
    assert pool.shortage(found(pool, [1] * 8), 3) == 0
    assert take_again(pool, [1] * 9) == [*table, 2]


def test_an_evicted_block_goes_on_in_host_memory_and_is_loaded_back() -> None:
    pool = BlockPool(2, SIZE, num_host_blocks=4)
    publish(pool, old := pool.allocate(2), [1] * 8)
    pool.release(old)
    pool.release(pool.allocate(2))
    assert pool.take_copies() == (Copy(1, 0, Medium.CPU), Copy(0, 1, Medium.CPU))
    assert match(pool, [1] * 8) == [None, None]
    table = take_again(pool, [1] * 8)
    assert pool.take_copies() == (Copy(1, table[0], Medium.GPU), Copy(0, table[1], Medium.GPU))
    assert match(pool, [1] * 8) == table
    assert repr(pool) == "<BlockPool 0 free 2 used 0 cached <HostTier 2 free 2 cached>>"


def test_what_was_loaded_back_leaves_again_without_a_copy() -> None:
    pool = BlockPool(2, SIZE, num_host_blocks=4)
    publish(pool, old := pool.allocate(2), [1] * 8)
    pool.release(old)
    pool.release(pool.allocate(2))
    pool.release(take_again(pool, [1] * 8))
    pool.take_copies()
    pool.allocate(2)
    assert pool.take_copies() == ()
    assert len(found(pool, [1] * 8)) == 2


def test_the_host_tier_lets_go_of_the_oldest_and_never_of_what_is_being_loaded() -> None:
    pool = BlockPool(3, SIZE, num_host_blocks=2)
    publish(pool, old := pool.allocate(2), [1] * 8)
    pool.release(old)
    publish(pool, new := pool.allocate(3), [2] * 12)
    pool.release(new)
    # All three leave the device for two that come back: there is no room in the host tier but what they take.
    table = take_again(pool, [1] * 12)
    loads = [copy for copy in pool.take_copies() if copy.to is Medium.GPU]
    assert [copy.target for copy in loads] == table[:2]
    assert match(pool, [1] * 8) == table[:2]
    assert match(pool, [2] * 12) == []
    assert pool.host.num_cached == 2


def test_a_new_block_takes_over_a_hash_that_only_the_host_tier_holds() -> None:
    pool = BlockPool(2, SIZE, num_host_blocks=2)
    pool.publish(first := pool.allocate(1), 0, 11, [1, 2, 3, 4], NO_SCOPE)
    pool.release(first)
    pool.release(pool.allocate(2))
    assert pool.host.num_cached == 1
    pool.publish(second := pool.allocate(1), 0, 11, [5, 6, 7, 8], NO_SCOPE)
    assert [prefix.block for prefix in pool.match([11], [5, 6, 7, 8], NO_SCOPE)] == second
    assert pool.match([11], [1, 2, 3, 4], NO_SCOPE) == []
    assert pool.host.num_cached == 0


def test_changes_tell_what_each_tier_came_to_hold() -> None:
    pool = BlockPool(2, SIZE, num_host_blocks=1, records_changes=True)
    publish(pool, table := pool.allocate(2), list(range(8)))
    pool.release(table)
    first, second = found(pool, list(range(8)))
    assert pool.take_changes() == [Stored([first, second], Medium.GPU)]
    pool.allocate(2)
    assert pool.take_changes() == [
        Stored([second], Medium.CPU),
        Removed([second.hash], Medium.GPU),
        Removed([second.hash], Medium.CPU),
        Stored([first], Medium.CPU),
        Removed([first.hash], Medium.GPU),
    ]
    pool.clear()
    assert pool.take_changes() == [Cleared()]
    assert pool.take_changes() == []


def test_after_clearing_nothing_is_found_and_holders_keep_their_blocks() -> None:
    pool = BlockPool(4, SIZE, num_host_blocks=2)
    publish(pool, table := pool.allocate(2), [1] * 8)
    publish(pool, other := pool.allocate(1), [2] * 4)
    pool.release(other)
    pool.clear()
    assert found(pool, [1] * 8) == []
    assert repr(pool) == "<BlockPool 2 free 2 used 0 cached <HostTier 2 free 0 cached>>"
    pool.release(table)
    assert pool.num_free == 4


def test_forgetting_an_adapter_leaves_the_others() -> None:
    pool = BlockPool(4, SIZE)
    mine, other = Scope("mine", None, 1), Scope("other", None, 2)
    for scope in (mine, other):
        publish(pool, pool.allocate(2), [1] * 8, scope)
    pool.forget_adapter(1)
    assert len(found(pool, [1] * 8, mine)) == 0
    assert len(found(pool, [1] * 8, other)) == 2


@dataclass(eq=False)
class Chain:
    """What a sequence would keep: its tokens, its table, and what each held block must contain."""

    tokens: list[int]
    table: list[int] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(20))
def test_random_use_keeps_every_block_accounted_for_and_every_match_true(seed: int) -> None:
    random = Random(seed)
    pool = BlockPool(24, SIZE, num_host_blocks=random.choice([0, 3, 20]), records_changes=True)
    told: dict[Medium, set[int]] = {medium: set() for medium in Medium}
    # (tier, block) -> the whole prefix whose KV it holds
    written: dict[tuple[Medium, int], list[int]] = {}
    chains: list[Chain] = []
    for _ in range(400):
        if random.random() < 0.6:
            start(pool, random, chains, written)
        elif chains:
            pool.release(chains.pop(random.randrange(len(chains))).table)
        held = {block for chain in chains for block in chain.table}
        assert pool.num_used == len(held)
        assert pool.num_free + pool.num_used + pool.num_cached == pool.num_blocks
        assert pool.host.num_free + pool.host.num_cached == pool.host.num_blocks
        follow(told, pool.take_changes())
        for medium in Medium:
            assert told[medium] == {prefix.hash for prefix in pool.held(medium)}
    for chain in chains:
        pool.release(chain.table)
    assert pool.num_used == 0


def start(pool: BlockPool, random: Random, chains: list[Chain], written: dict[tuple[Medium, int], list[int]]) -> None:
    chain = Chain([random.randrange(2) for _ in range(SIZE * random.randint(1, 5))])
    matched = found(pool, chain.tokens)
    for index, prefix in enumerate(matched):
        on_device = (Medium.GPU, prefix.block) if prefix.block is not None else (Medium.CPU, prefix.host_block or 0)
        assert written[on_device] == chain.tokens[: (index + 1) * SIZE]
    num_blocks = len(chain.tokens) // SIZE
    if pool.shortage(matched, num_blocks):
        return
    chain.table = pool.acquire(matched, num_blocks)
    for copy in pool.take_copies():
        origin = Medium.CPU if copy.to is Medium.GPU else Medium.GPU
        written[copy.to, copy.target] = written[origin, copy.source]
    for index in range(num_blocks):
        prefix_tokens = chain.tokens[: (index + 1) * SIZE]
        if index < len(matched):
            assert written[Medium.GPU, chain.table[index]] == prefix_tokens
        written[Medium.GPU, chain.table[index]] = prefix_tokens
    publish(pool, chain.table, chain.tokens)
    chains.append(chain)


def follow(told: dict[Medium, set[int]], changes: list[Change]) -> None:
    """As a reader of the events would."""
    for change in changes:
        if isinstance(change, Stored):
            for prefix in change.prefixes:
                assert prefix.parent is None or any(prefix.parent.hash in hashes for hashes in told.values())
                told[change.medium].add(prefix.hash)
        elif isinstance(change, Removed):
            told[change.medium] -= set(change.hashes)


def test_what_was_found_before_is_taken_up_again_as_far_as_it_is_there_still() -> None:
    pool = BlockPool(4, SIZE)
    tokens = list(range(16))
    publish(pool, table := pool.allocate(4), tokens)
    pool.release(table)
    before = found(pool, tokens)
    pool.release(pool.allocate(2))
    shorter = pool.match(hashes(tokens, NO_SCOPE), tokens, NO_SCOPE, before)
    assert shorter == before[:2]
    table = pool.acquire(shorter, 4)
    publish(pool, table, tokens)
    again = pool.match(hashes(tokens, NO_SCOPE), tokens, NO_SCOPE, before)
    assert [prefix.block for prefix in again] == table
    assert again == found(pool, tokens)
    pool.clear()
    assert pool.match(hashes(tokens, NO_SCOPE), tokens, NO_SCOPE, again) == []
