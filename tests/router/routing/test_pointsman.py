from collections import Counter
from random import Random
from typing import Any

import pytest

from router.core import Candidate, Decision, Lease, Prompt, Slo
from router.routing.pointsman import MAX_BEST, Pointsman
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
    """Pitfall: a small hit beats an idle replica, or a ratio ignores a big shared prefix in a long prompt."""
    waits = {"foreign_tokens": 1000}
    long = [make_candidate("owner", 1600, **waits), make_candidate("idle")]
    assert chosen(long, make_prompt(16_000)) == "owner"
    short = [make_candidate("owner", 192, **waits), make_candidate("idle")]
    assert chosen(short, make_prompt(200)) == "idle"


def test_a_saturated_replica_elsewhere_does_not_end_affinity() -> None:
    """Pitfall: a fleet-wide imbalance gate drops affinity for everybody."""
    candidates = [
        make_candidate("owner", 640, in_flight=1),
        make_candidate("idle"),
        make_candidate("swamped", in_flight=7, foreign_tokens=10**6),
    ]
    assert chosen(candidates, make_prompt(700)) == "owner"


def test_misses_go_to_the_lowest_wait_not_the_smallest_cache() -> None:
    """Pitfall: a cache miss goes to the smallest tree, not the least wait."""
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
            explained = {each.replica.id: each for each in policy.explain(demand, view)}
            assert {id: sum(explained[id].scores.values()) for id in costs} == pytest.approx(costs)


@pytest.mark.parametrize("session", [None, "s1"])
def test_every_affinity_gives_way_to_load(session: str | None) -> None:
    """Pitfall: an affinity without a bound pins a saturated replica."""
    policy = Pointsman("pointsman", 8)
    blind = Prompt(640, (1, 2, 3), 16, is_exact=False)
    names = "abcd"
    demand = make_demand(prompt=blind, session=session)
    first = policy.decide(demand, make_view([make_candidate(name) for name in names]))
    assert first is not None
    policy.placed(Lease(demand, first, 0.0, lambda _: None, lambda _: None))
    busy = {first.replica.id: 5000}
    fleet = [make_candidate(name, 640, foreign_tokens=busy.get(name, 0)) for name in names]
    again = policy.decide(demand, make_view(fleet))
    assert again is not None
    assert again.replica.id != first.replica.id


def test_a_session_is_kept_where_its_prompt_says_nothing() -> None:
    policy = Pointsman("pointsman", 8)
    for number in range(20):
        demand = make_demand(prompt=Prompt(640, (), 16, is_exact=False), session=f"s{number}")
        first = policy.decide(demand, make_view([make_candidate(name) for name in "abcd"]))
        assert first is not None
        policy.placed(Lease(demand, first, 0.0, lambda _: None, lambda _: None))
        cached = {each: 9 * (each == first.replica.id) for each in "abcd"}
        again = policy.decide(demand, make_view([make_candidate(name, 0, cached[name]) for name in "abcd"]))
        assert again is not None
        assert again.replica.id == first.replica.id, "though others have fewer cached blocks"


def test_without_any_report_our_own_counts_decide() -> None:
    """Pitfall: a signal that is missing makes a policy silently random."""
    fleet = [make_candidate(name, load=None, in_flight=count) for name, count in (("a", 5), ("b", 1), ("c", 3))]
    assert {chosen(fleet, make_prompt(64, first_hash=100 * n)) for n in range(50)} == {"b"}


def test_a_replica_takes_no_more_beyond_its_useful_depth_and_the_demand_waits() -> None:
    deep: dict[str, Any] = {"in_flight": 1, "prefilling": 1, "prefilling_s": 9.0, "prefilled_at": 9.0}
    assert chosen([make_candidate("owner", 64, **deep), make_candidate("idle")]) == "idle"
    assert decide([make_candidate("a", **deep), make_candidate("b", **deep)]) is None
    policy, view = Pointsman("pointsman", 8), make_view([make_candidate("a", **deep)], now=2.0)
    assert policy.decide(make_demand(), view) is not None, "time has done some of it"


def test_what_open_requests_share_draws_when_the_cache_is_scarce() -> None:
    full: dict[str, Any] = {"kv_capacity_tokens": 10_000, "held_tokens": 8000, "in_flight": 4}
    sharing = make_candidate("sharing", foreign_tokens=500, shared_tokens=lambda prompt: 3000, **full)
    policy, demand = Pointsman("pointsman", 8), make_demand(prompt=make_prompt(3200))
    fleet = [sharing, make_candidate("other", **full)]
    decision = policy.decide(demand, make_view(fleet, expected_output_tokens=500.0))
    assert decision is not None
    assert decision.replica.id == "sharing"


def test_a_hoped_for_latency_moves_a_request_that_would_miss_it() -> None:
    queued: dict[str, Any] = {"prefilling": 1, "in_flight": 1, "prefilling_s": 0.3, "prefilled_at": 0.3}
    fleet = [make_candidate("owner", 1600, **queued), make_candidate("idle")]
    prompt, hasty = make_prompt(1800), Slo(ttft_s=0.365)
    assert chosen(fleet, prompt) == "owner"
    assert chosen(fleet, prompt, slo=Slo(ttft_s=5.0)) == "owner"
    assert chosen([make_candidate("owner", 1600, **queued), make_candidate("idle", 1104)], prompt) == "owner"
    assert chosen([make_candidate("owner", 1600, **queued), make_candidate("idle", 1104)], prompt, slo=hasty) == "idle"


def test_an_adapter_draws_to_where_it_is() -> None:
    served: dict[str, Any] = {"adapters": frozenset({"x"}), "adapter_load_s": 0.2}
    fleet = [
        make_candidate("there", 0, 9, in_flight=1, resident_adapters=("x",), **served),
        make_candidate("free", **served),
    ]
    assert chosen(fleet, adapter="x") == "there"


def large_fleet(size: int) -> list[Candidate]:
    return [make_candidate(f"r{number:04}") for number in range(size)]


def test_a_decision_in_a_large_fleet_looks_closely_at_few() -> None:
    """Pitfall: work that grows with the fleet for each request."""
    policy, view = Pointsman("pointsman", 8), make_view(large_fleet(1000))
    assert len(policy.options(make_demand(), view)) == MAX_BEST


def test_in_a_large_fleet_holders_are_found_and_misses_spread() -> None:
    policy, fleet = Pointsman("pointsman", 8), large_fleet(1000)
    view = make_view(fleet)
    for number in range(1000):
        demand = make_demand(prompt=make_prompt(640, first_hash=1000 * number))
        decision = policy.decide(demand, view)
        assert decision is not None
        decision.replica.in_flight += 1
    assert max(each.replica.in_flight for each in fleet) <= 2
    held = make_view([Candidate(each.replica, 640 if each is fleet[777] else 0) for each in fleet])
    found = policy.decide(make_demand(prompt=make_prompt(700)), held)
    assert found is not None
    assert found.replica is fleet[777].replica


def test_in_a_large_fleet_the_last_free_place_is_found() -> None:
    fleet = [make_candidate(f"r{number:04}", in_flight=8 * (number != 500)) for number in range(1000)]
    assert chosen(fleet) == "r0500"
