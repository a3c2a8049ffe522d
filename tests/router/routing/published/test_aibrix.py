from tests.router.nouns import make_prompt
from tests.router.routing.published.rig import Rig

PROMPT = make_prompt(160)


def test_the_longest_match_wins_then_the_fewer_requests() -> None:
    rig = Rig("aibrix-prefix")
    rig.put("in_flight", a=2, b=1, c=2)
    assert rig.choose(PROMPT, a=160, b=80) == "a"
    assert rig.choose(PROMPT, a=80, b=80) == "b"


def test_a_match_with_more_than_a_deviation_above_the_mean_is_passed_over() -> None:
    rig = Rig("aibrix-prefix")
    rig.put("in_flight", a=8, b=2, c=2)
    assert rig.choose(PROMPT, a=160, c=16) == "c", "8 is over 4 + 2.83"
    assert rig.often(PROMPT, a=160) == {"b", "c"}


def test_unbalanced_counts_go_to_the_fewest_whatever_matches() -> None:
    rig = Rig("aibrix-prefix")
    rig.put("in_flight", a=9, b=1, c=0)
    assert rig.choose(PROMPT, b=160) == "c"
    rig.put("in_flight", a=8, b=1, c=0)
    assert rig.choose(PROMPT, b=160) == "b"


def test_no_match_goes_to_the_fewest_at_random() -> None:
    rig = Rig("aibrix-prefix")
    rig.put("in_flight", a=1, b=0, c=0)
    assert rig.often(PROMPT) == {"b", "c"}
