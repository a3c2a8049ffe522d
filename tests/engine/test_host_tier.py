from engine.host_tier import HostTier
from engine.prefixes import NO_SCOPE, Prefix


def prefix(number: int) -> Prefix:
    return Prefix(number, (number,), None, NO_SCOPE)


def filled(num_blocks: int) -> tuple[HostTier, list[Prefix]]:
    tier, prefixes = HostTier(num_blocks), [prefix(number) for number in range(num_blocks)]
    assert all(tier.add(each) for each in prefixes)
    return tier, prefixes


def test_each_prefix_has_a_block_of_its_own_until_there_are_no_more() -> None:
    tier, prefixes = filled(3)
    assert [each.host_block for each in prefixes] == [0, 1, 2]
    assert not tier.add(late := prefix(9))
    assert late.host_block is None
    assert repr(tier) == "<HostTier 0 free 3 cached>"


def test_the_oldest_is_the_one_that_was_not_used_for_longest() -> None:
    tier, prefixes = filled(3)
    tier.touch(prefixes[0])
    assert tier.oldest_if_full() is prefixes[1]
    tier.remove(prefixes[1])
    assert tier.oldest_if_full() is None
    assert (prefixes[1].host_block, tier.num_free) == (None, 1)


def test_what_is_being_kept_is_never_the_oldest_and_the_newest_afterwards_heads_last() -> None:
    tier, prefixes = filled(3)
    with tier.keeping(prefixes[:2]):
        assert tier.oldest_if_full() is prefixes[2]
        tier.remove(prefixes[2])
        assert tier.add(newer := prefix(9))
    order = []
    while (oldest := tier.oldest_if_full()) is not None:
        order.append(oldest)
        tier.remove(oldest)
        tier.add(prefix(100))
        if len(order) == 3:
            break
    assert order == [newer, prefixes[1], prefixes[0]]


def test_when_all_are_being_kept_there_is_nobody_to_replace() -> None:
    tier, prefixes = filled(2)
    with tier.keeping(prefixes):
        assert tier.oldest_if_full() is None
        assert not tier.add(prefix(9))


def test_a_tier_of_no_blocks_takes_nothing() -> None:
    tier = HostTier(0)
    assert tier.oldest_if_full() is None
    assert not tier.add(prefix(1))
