from collections import Counter

import pytest

from router.routing.published.consistent_hash import BoundedRing
from router.routing.ring import prefix_key, walk
from tests.router.nouns import make_demand, make_prompt
from tests.router.routing.published.rig import Rig


def test_the_first_256_tokens_decide_alike_in_every_router() -> None:
    places = [
        [Rig("consistent-hash", names).choose(make_prompt(640, first_hash=1000 * n)) for n in range(300)]
        for names in ("abcd", "dcba")
    ]
    assert places[0] == places[1]
    assert min(Counter(places[0]).values()) > 40


def test_what_follows_the_head_does_not_matter() -> None:
    rig = Rig("consistent-hash", "abcd")
    assert rig.choose(make_prompt(256)) == rig.choose(make_prompt(5000))


def test_a_loaded_owner_passes_on_to_the_fewest() -> None:
    """Pitfall: consistent hashing without a bound pins a saturated replica."""
    rig = Rig("consistent-hash", "abcd")
    owner = rig.choose()
    others = {name: number for number, name in enumerate(set("abcd") - {owner}, start=10)}
    rig.put("in_flight", **others)
    rig.put("in_flight", **{owner: 16})
    assert rig.choose() == min(others, key=others.__getitem__), "16 is more than 1.25 x 50 / 4"
    rig.put("in_flight", **{owner: 15})
    assert rig.choose() == owner


def test_few_keys_move_when_a_replica_goes() -> None:
    keys = [prefix_key(make_demand(prompt=make_prompt(64, first_hash=n)), 256) for n in range(0, 20_000, 100)]
    before = [next(walk("abcde", key)) for key in keys]
    after = [next(walk("abcd", key)) for key in keys]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "e")
    assert sorted(walk("abcde", keys[0])) == list("abcde")


def test_a_prompt_without_a_whole_block_has_a_place() -> None:
    assert Rig("consistent-hash").choose(make_prompt(7)) in "abc"


def test_a_bound_below_the_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="max_load_ratio must be at least 1"):
        BoundedRing(max_load_ratio=0.9)
