import pytest

from router.routing.scorers.prefill import Prefill
from tests.router.nouns import make_candidate, make_demand, make_prompt


def seconds(num_tokens: int, num_template_tokens: int, *matched: int) -> list[float]:
    """The score of replicas that compute one token a second."""
    demand = make_demand(prompt=make_prompt(num_tokens, num_template_tokens))
    return Prefill().score(demand, [make_candidate(str(n), n, prefill_tokens_per_s=1.0) for n in matched])


def test_cached_tokens_are_not_computed() -> None:
    assert seconds(100, 0, 0, 64, 99) == [100.0, 36.0, 1.0]


def test_holding_the_template_is_no_reason() -> None:
    assert seconds(100, 40, 0, 16, 32, 48) == [68.0, 68.0, 68.0, 52.0]


def test_a_block_that_the_template_only_begins_counts_in_full() -> None:
    """Of 40 template tokens an engine reuses 32 at most: a third block holds words of this very chat."""
    no_match, with_match = seconds(100, 40, 0, 48)
    assert no_match - with_match == 16.0


def test_a_prompt_that_is_all_template_still_computes_its_last_token() -> None:
    assert seconds(32, 32, 0, 31) == [1.0, 1.0]


def test_an_empty_prompt_costs_nothing() -> None:
    assert seconds(0, 0, 0) == [0.0]


def test_noise_in_learned_speeds_makes_no_difference_and_another_machine_does() -> None:
    demand = make_demand(prompt=make_prompt(6000))
    speeds = [900.0, 1000.0, 1200.0, 3000.0, 900.0]
    candidates = [make_candidate(str(n), prefill_tokens_per_s=speed) for n, speed in enumerate(speeds)]
    assert Prefill().score(demand, candidates) == [6.0, 6.0, 6.0, 2.0, 6.0]
    assert Prefill(speed_noise=0.0).score(demand, candidates[:3]) == [6000 / 900, 6.0, 5.0]


def test_noise_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="speed_noise"):
        Prefill(speed_noise=-0.1)
