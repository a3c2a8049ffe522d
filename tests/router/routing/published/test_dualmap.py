from tests.router.nouns import make_prompt
from tests.router.routing.published.rig import Rig


def pair(rig: Rig, first_hash: int) -> set[str]:
    """Its two candidates: each is chosen when it alone holds the prompt."""
    prompt = make_prompt(2048, first_hash=first_hash)
    return {name for name in rig.names if rig.choose(prompt, **{name: 2000}) == name}


def test_a_head_has_two_candidates_and_heads_differ() -> None:
    rig = Rig("dualmap", "abcdef")
    pairs = [pair(rig, 10_000 * n) for n in range(30)]
    assert all(1 <= len(each) <= 2 for each in pairs)
    assert len({frozenset(each) for each in pairs}) > 8


def test_the_holder_serves_while_its_first_token_is_in_time_then_the_sooner_one() -> None:
    rig = Rig("dualmap", "abcdef")
    first_hash = next(10_000 * n for n in range(30) if len(pair(rig, 10_000 * n)) == 2)
    prompt = make_prompt(2048, first_hash=first_hash)
    holder, other = sorted(pair(rig, first_hash))
    rig.put("prefilling_s", **{holder: 1.9})
    assert rig.choose(prompt, **{holder: 2000}) == holder
    rig.put("prefilling_s", **{holder: 2.1})
    assert rig.choose(prompt, **{holder: 2000}) == other


def test_where_both_are_late_the_hot_spot_is_left() -> None:
    rig = Rig("dualmap", "abcdef")
    prompt, two = make_prompt(2048), pair(rig, 0)
    rig.put("prefilling_s", **dict.fromkeys(two, 3.0))
    assert rig.choose(prompt) not in two
