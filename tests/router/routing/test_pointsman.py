from collections import Counter
from random import Random

import pytest

from router.core import Candidate, Decision, Prompt
from router.routing.pointsman import Pointsman
from tests.router.nouns import make_candidate, make_demand, make_prompt, make_view


def decide(candidates: list[Candidate], prompt: Prompt | None = None, **fields: object) -> Decision | None:
    return Pointsman("pointsman", 8).decide(make_demand(prompt=prompt, **fields), make_view(candidates))  # type: ignore[arg-type]


def chosen(candidates: list[Candidate], prompt: Prompt | None = None, **fields: object) -> str:
    decision = decide(candidates, prompt, **fields)
    assert decision is not None
    return decision.replica.id


def test_a_fresh_conversation_goes_to_the_shorter_wait() -> None:
    candidates = [make_candidate("busy", in_flight=1), make_candidate("idle", cached_blocks=900)]
    assert chosen(candidates, make_prompt(40, 20)) == "idle"


def test_one_running_request_is_a_longer_wait_on_slow_engines_too() -> None:
    slow = {"tokens_per_s": 200.0}
    candidates = [make_candidate("busy", 0, 0, in_flight=1, **slow), make_candidate("idle", 0, 900, **slow)]
    assert chosen(candidates, make_prompt(40, 20)) == "idle"


@pytest.mark.parametrize("num_template_tokens", [16, 20, 31, 40])
def test_idle_replicas_tie_for_a_fresh_conversation_whoever_holds_the_template(num_template_tokens: int) -> None:
    held = num_template_tokens - num_template_tokens % 16
    candidates = [make_candidate("holder", held, cached_blocks=9), make_candidate("cold", 0, cached_blocks=3)]
    assert chosen(candidates, make_prompt(640, num_template_tokens)) == "cold"


def test_idle_replicas_tie_though_their_learned_speeds_differ_a_little() -> None:
    candidates = [
        make_candidate("fast", 0, 9, tokens_per_s=2300.0),
        make_candidate("slow", 0, 3, tokens_per_s=1900.0),
    ]
    assert chosen(candidates, make_prompt(4000, 20)) == "slow"


@pytest.mark.parametrize("speed", [50.0, 2000.0, 45_000.0])
@pytest.mark.parametrize("num_template_tokens", [0, 16, 20, 31])
def test_one_block_beyond_the_template_is_no_tie(speed: float, num_template_tokens: int) -> None:
    held = num_template_tokens - num_template_tokens % 16 + 16
    fields = {"tokens_per_s": speed}
    candidates = [make_candidate("owner", held, 9, last_used=9.0, **fields), make_candidate("cold", 0, 0, **fields)]
    assert chosen(candidates, make_prompt(100, num_template_tokens)) == "owner"


def test_ties_go_to_fewer_cached_blocks_then_least_recently_used() -> None:
    candidates = [
        make_candidate("full", 0, 9, last_used=1.0),
        make_candidate("recent", 0, 3, last_used=5.0),
        make_candidate("rested", 0, 3, last_used=2.0),
    ]
    assert chosen(candidates) == "rested"


def test_saved_tokens_decide_not_ratios() -> None:
    """A tenth of a long prompt is worth more than the whole of a short one."""
    waits = {"foreign_tokens": 1000}
    long = [make_candidate("owner", 1600, **waits), make_candidate("idle")]
    assert chosen(long, make_prompt(16_000)) == "owner"
    short = [make_candidate("owner", 192, **waits), make_candidate("idle")]
    assert chosen(short, make_prompt(200)) == "idle"


def test_a_saturated_replica_elsewhere_does_not_end_affinity() -> None:
    candidates = [
        make_candidate("owner", 640, in_flight=1),
        make_candidate("idle"),
        make_candidate("swamped", in_flight=7, foreign_tokens=10**6),
    ]
    assert chosen(candidates, make_prompt(700)) == "owner"


def test_misses_go_to_the_lowest_wait_not_the_smallest_cache() -> None:
    candidates = [
        make_candidate("small", 0, 0, foreign_tokens=100),
        make_candidate("large", 0, 10_000, foreign_tokens=50),
    ]
    assert chosen(candidates) == "large"


def test_sessions_that_nobody_knows_spread_evenly_and_alike_in_every_router() -> None:
    places = [
        [chosen([make_candidate(name) for name in names], session=f"s{n}") for n in range(400)]
        for names in ("abcd", "dcab")
    ]
    assert places[0] == places[1]
    assert min(Counter(places[0]).values()) > 70


def test_credentials_never_decide() -> None:
    """Pitfall: one shared API key pins everybody to one replica."""
    key = (("authorization", "Bearer one"),)
    prompts = [make_prompt(64, first_hash=100 * n) for n in range(100)]
    plain = [chosen([make_candidate(name) for name in "abcd"], prompt) for prompt in prompts]
    keyed = [chosen([make_candidate(name) for name in "abcd"], prompt, headers=key) for prompt in prompts]
    assert plain == keyed
    assert len(set(plain)) == 4


def test_the_chosen_replica_has_the_lowest_cost_up_to_the_tie() -> None:
    random = Random(9)
    policy = Pointsman("pointsman", 8)
    for _ in range(400):
        candidates = [
            make_candidate(
                str(n),
                16 * random.randrange(40),
                random.randrange(100),
                in_flight=random.randrange(10),
                prefilling_s=(queued_s := random.choice([0.0, random.random()])),
                prefilled_at=queued_s,
                foreign_tokens=random.randrange(1000),
            )
            for n in range(6)
        ]
        demand, view = make_demand(prompt=make_prompt(700, 33)), make_view(candidates, expected_output_tokens=50.0)
        decision, options = policy.decide(demand, view), policy.options(demand, view)
        assert {each.replica.id for each in options} == {
            each.replica.id for each in candidates if each.replica.in_flight < 8
        }
        if decision is not None:
            costs = {each.replica.id: each.cost for each in options}
            assert costs[decision.replica.id] <= min(costs.values()) + 0.0025 + 1e-9
            assert sum(decision.scores.values()) == pytest.approx(costs[decision.replica.id])
