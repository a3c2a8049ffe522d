import pytest

from router.routing.scorers.first_token import FirstToken
from tests.router.nouns import make_candidate, make_demand, make_prompt


def seconds(num_tokens: int, num_template_tokens: int, *matched: int) -> list[float]:
    """The score of idle replicas that compute one token a second."""
    demand = make_demand(prompt=make_prompt(num_tokens, num_template_tokens))
    return FirstToken().score(demand, [make_candidate(str(n), n, prefill_tokens_per_s=1.0) for n in matched])


def test_the_wait_is_queued_tokens_over_speed_and_the_drag_of_those_running() -> None:
    candidates = [
        make_candidate("idle"),
        make_candidate("queued", in_flight=1, prefilling=1, prefilling_tokens=1000, prefill_tokens_per_s=500.0),
        make_candidate("running", in_flight=4, decode_drag_s=0.25),
        make_candidate("foreign", foreign_tokens=1000, foreign_requests=2, decode_drag_s=0.5),
        make_candidate("siblings", sibling_in_flight=3, sibling_prefilling=1, sibling_prefilling_tokens=4000),
    ]
    waits = FirstToken().score(make_demand(prompt=make_prompt(0)), candidates)
    assert waits == [0.0, 2.0, 1.0, 1.5, pytest.approx(2.01)]


def test_without_a_load_report_what_we_sent_is_the_wait() -> None:
    candidate = make_candidate(load=None, in_flight=1, prefilling=1, prefilling_tokens=100, prefill_tokens_per_s=100.0)
    assert FirstToken().score(make_demand(prompt=make_prompt(0)), [candidate]) == [1.0]


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
    assert FirstToken().score(demand, candidates) == [6.0, 6.0, 6.0, 2.0, 6.0]
    assert FirstToken(speed_noise=0.0).score(demand, candidates[:3]) == [6000 / 900, 6.0, 5.0]


def test_noise_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="speed_noise"):
        FirstToken(speed_noise=-0.1)
