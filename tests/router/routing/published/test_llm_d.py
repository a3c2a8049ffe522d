"""The blends, token-aware and no-hit-lru, each by its formula."""

from router.core import Load
from router.routing.published.no_hit_lru import NoHitLru
from tests.router.nouns import make_candidate, make_demand, make_prompt
from tests.router.routing.published.rig import Rig


def load(waiting: int, kv_used_ratio: float) -> Load:
    return Load(0.0, 1, waiting, kv_used_ratio)


def test_the_blend_weighs_matches_three_and_queue_and_kv_two() -> None:
    rig = Rig("llm-d-blend", "ab")
    prompt = make_prompt(640)
    rig.place("a", prompt)
    rig.put("load", a=load(5, 0.0), b=load(0, 0.4))
    assert rig.often(prompt) == {"a"}, "3 + 0 + 2 against 0 + 2 + 1.2"
    rig.put("load", a=load(5, 1.0), b=load(0, 0.4))
    assert rig.often(prompt) == {"b"}, "3 + 0 + 0 against 0 + 2 + 1.2"


def test_the_precise_blend_goes_by_what_engines_hold_with_two_one_one() -> None:
    rig = Rig("llm-d-precise", "ab")
    prompt = make_prompt(640)
    rig.place("b", prompt)
    rig.put("load", a=load(5, 0.5), b=load(0, 0.0))
    assert rig.often(prompt, a=640) == {"a"}, "2 + 0 + 0.5 against 0 + 1 + 1"
    assert rig.often(prompt, a=320) == {"b"}, "1 + 0 + 0.5 against 0 + 1 + 1"


def test_blends_break_ties_at_random() -> None:
    assert Rig("llm-d-blend").often() == Rig("llm-d-precise").often() == {"a", "b", "c"}


def test_token_aware_is_sticky_from_eighty_percent_on() -> None:
    rig = Rig("llm-d-token-aware", "ab")
    prompt = make_prompt(1600)
    rig.put("prefilling_tokens", a=2000)
    assert rig.choose(prompt, a=1280) == "a"
    assert rig.choose(prompt, a=1264) == "b"


def test_token_aware_lets_go_when_its_holders_have_18_s_more_to_compute_than_others() -> None:
    rig = Rig("llm-d-token-aware", "ab")
    prompt = make_prompt(1600)
    rig.put("prefilling_tokens", a=18 * 2000 + 100, b=100)
    assert rig.choose(prompt, a=1584) == "a"
    rig.put("prefilling_tokens", a=18 * 2000 + 101, b=100)
    assert rig.choose(prompt, a=1584) == "b"


def test_token_aware_takes_the_least_uncached_tokens_ours_included_and_is_blind_to_decoding() -> None:
    rig = Rig("llm-d-token-aware", "abc")
    rig.put("prefilling_tokens", a=500, b=100, c=399)
    rig.put("in_flight", c=100)
    assert rig.choose(make_prompt(1600), c=320) == "c", "399 + 1280 is less than 100 + 1600"
    assert rig.choose(make_prompt(1600), c=288) == "b"


def test_cold_prompts_go_to_whom_none_was_sent_for_longest() -> None:
    scorer, fleet = NoHitLru(), [make_candidate(name) for name in "abc"]
    rig = Rig("random")
    for name in ("c", "a"):
        lease = rig.place(name)
        scorer.placed(lease)
    assert scorer.score(make_demand(), fleet) == [0.0, 1.0, 0.5]
    scorer.placed(rig.place("b", matched_tokens=16))
    assert scorer.score(make_demand(), fleet) == [0.0, 1.0, 0.5], "it was no cold prompt"


def test_a_prompt_that_somebody_holds_is_of_no_concern_to_no_hit_lru() -> None:
    assert NoHitLru().score(make_demand(), [make_candidate("a", 16), make_candidate("b")]) == [0.5, 0.5]
    assert NoHitLru().score(make_demand(), [make_candidate("a")]) == [1.0]
