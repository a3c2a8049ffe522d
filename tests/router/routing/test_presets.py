from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from router.core import Candidate, Prompt
from router.plugins import PluginError
from router.routing.policy import FilterScorePick
from router.routing.presets import DEFAULT, PRESETS, Part, Parts, Recipe, compose, open_parts, preset
from tests.router.nouns import make_candidate, make_demand, make_prompt


@pytest.fixture(scope="module")
def parts() -> Parts:
    return open_parts()


def build(parts: Parts, name: str = DEFAULT, seed: int = 1) -> FilterScorePick:
    return preset(name, parts, Random(seed), max_in_flight=8)


def chosen(policy: FilterScorePick, candidates: list[Candidate], prompt: Prompt | None = None, **fields: object) -> str:
    decision = policy.decide(make_demand(prompt=prompt, **fields), candidates)  # type: ignore[arg-type]
    assert decision is not None
    return decision.replica.id


def test_an_unknown_preset_suggests_the_nearest(parts: Parts) -> None:
    with pytest.raises(PluginError, match='unknown policy "round-robbin"; did you mean "round-robin"'):
        build(parts, "round-robbin")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_excludes_tried_full_and_wrong_adapter(parts: Parts, name: str) -> None:
    policy = build(parts, name)
    candidates = [
        make_candidate("tried", adapters=frozenset({"x"})),
        make_candidate("full", in_flight=8, adapters=frozenset({"x"})),
        make_candidate("bare"),
        make_candidate("right", in_flight=7, adapters=frozenset({"x"})),
    ]
    for _ in range(20):
        assert chosen(policy, candidates, adapter="x", tried=frozenset({"tried"})) == "right"
    assert policy.decide(make_demand(adapter="y"), candidates) is None


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_who_decided(parts: Parts, name: str) -> None:
    decision = build(parts, name).decide(make_demand(), [make_candidate()])
    assert decision is not None
    assert decision.policy == name


def test_least_request_takes_the_fewest_with_ties_at_random(parts: Parts) -> None:
    policy = build(parts, "least-request")
    candidates = [make_candidate(name, in_flight=count) for name, count in (("a", 3), ("b", 1), ("c", 1))]
    counts = Counter(chosen(policy, candidates) for _ in range(500))
    assert set(counts) == {"b", "c"}


def test_a_fresh_conversation_goes_to_the_shorter_wait(parts: Parts) -> None:
    candidates = [make_candidate("busy", in_flight=1), make_candidate("idle", cached_blocks=900)]
    assert chosen(build(parts), candidates, make_prompt(40, 20)) == "idle"


def test_one_running_request_is_a_longer_wait_on_slow_engines_too(parts: Parts) -> None:
    slow = {"prefill_tokens_per_s": 200.0}
    candidates = [make_candidate("busy", 0, 0, in_flight=1, **slow), make_candidate("idle", 0, 900, **slow)]
    assert chosen(build(parts), candidates, make_prompt(40, 20)) == "idle"


@pytest.mark.parametrize("num_template_tokens", [16, 20, 31, 40])
def test_idle_replicas_tie_for_a_fresh_conversation_whoever_holds_the_template(
    parts: Parts, num_template_tokens: int
) -> None:
    held = num_template_tokens - num_template_tokens % 16
    candidates = [make_candidate("holder", held, cached_blocks=9), make_candidate("cold", 0, cached_blocks=3)]
    assert chosen(build(parts), candidates, make_prompt(640, num_template_tokens)) == "cold"


def test_idle_replicas_tie_though_their_learned_speeds_differ_a_little(parts: Parts) -> None:
    candidates = [
        make_candidate("fast", 0, 9, prefill_tokens_per_s=2300.0),
        make_candidate("slow", 0, 3, prefill_tokens_per_s=1900.0),
    ]
    assert chosen(build(parts), candidates, make_prompt(4000, 20)) == "slow"


@pytest.mark.parametrize("speed", [50.0, 2000.0, 45_000.0])
@pytest.mark.parametrize("num_template_tokens", [0, 16, 20, 31])
def test_one_block_beyond_the_template_is_no_tie(parts: Parts, speed: float, num_template_tokens: int) -> None:
    held = num_template_tokens - num_template_tokens % 16 + 16
    fields = {"prefill_tokens_per_s": speed}
    candidates = [make_candidate("owner", held, 9, last_used=9.0, **fields), make_candidate("cold", 0, 0, **fields)]
    assert chosen(build(parts), candidates, make_prompt(100, num_template_tokens)) == "owner"


def test_ties_go_to_fewer_cached_blocks_then_least_recently_used(parts: Parts) -> None:
    candidates = [
        make_candidate("full", 0, 9, last_used=1.0),
        make_candidate("recent", 0, 3, last_used=5.0),
        make_candidate("rested", 0, 3, last_used=2.0),
    ]
    assert chosen(build(parts), candidates) == "rested"


def test_saved_tokens_decide_not_ratios(parts: Parts) -> None:
    """A tenth of a long prompt is worth more than the whole of a short one."""
    waits = {"foreign_tokens": 1000}
    long = [make_candidate("owner", 1600, **waits), make_candidate("idle")]
    assert chosen(build(parts), long, make_prompt(16_000)) == "owner"
    short = [make_candidate("owner", 192, **waits), make_candidate("idle")]
    assert chosen(build(parts), short, make_prompt(200)) == "idle"


def test_a_saturated_replica_elsewhere_does_not_end_affinity(parts: Parts) -> None:
    candidates = [
        make_candidate("owner", 640, in_flight=1),
        make_candidate("idle"),
        make_candidate("swamped", in_flight=7, foreign_tokens=10**6),
    ]
    assert chosen(build(parts), candidates, make_prompt(700)) == "owner"


def test_misses_go_to_the_lowest_wait_not_the_smallest_cache(parts: Parts) -> None:
    candidates = [
        make_candidate("small", 0, 0, foreign_tokens=100),
        make_candidate("large", 0, 10_000, foreign_tokens=50),
    ]
    assert chosen(build(parts), candidates) == "large"


def test_equal_in_everything_is_at_random(parts: Parts) -> None:
    policy = build(parts)
    counts = Counter(chosen(policy, [make_candidate(name) for name in "abcd"]) for _ in range(2000))
    assert min(counts.values()) > 400


def test_credentials_never_decide(parts: Parts) -> None:
    """The cache and the wait do: one shared key must not pin everybody to one replica."""
    for seed in range(20):
        plain = chosen(build(parts, seed=seed), [make_candidate(name) for name in "abcd"])
        keyed = chosen(
            build(parts, seed=seed),
            [make_candidate(name) for name in "abcd"],
            headers=(("authorization", "Bearer one"),),
        )
        assert plain == keyed


def test_the_chosen_candidate_has_the_lowest_cost_up_to_the_tie(parts: Parts) -> None:
    random = Random(9)
    for _ in range(400):
        candidates = [
            make_candidate(
                str(n),
                16 * random.randrange(40),
                random.randrange(100),
                in_flight=random.randrange(10),
                prefilling_tokens=random.choice([0, random.randrange(5000)]),
            )
            for n in range(6)
        ]
        decision = build(parts).decide(make_demand(prompt=make_prompt(700, 33)), candidates)
        costs = {
            each.replica.id: each.replica.expected_wait_s + (700 - max(32, each.matched_tokens)) / 2000.0
            for each in candidates
            if each.replica.in_flight < 8
        }
        assert (decision is None) == (not costs)
        if decision is not None:
            assert costs[decision.replica.id] <= min(costs.values()) + 0.0025 + 1e-9
            assert sum(decision.scores.values()) == pytest.approx(costs[decision.replica.id])


def test_a_recipe_takes_parts_by_file_with_options(parts: Parts, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from router.routing.policy import Unit\n"
        "@dataclass(frozen=True)\n"
        "class ByName:\n"
        "    favourite: str\n"
        "    unit: ClassVar[Unit] = Unit.SHARE\n"
        "    def score(self, demand, candidates):\n"
        "        return [float(each.replica.id == self.favourite) for each in candidates]\n"
    )
    mine = Part(f"{path}:ByName", {"favourite": "b"}, weight=3.0)
    recipe = Recipe(picker=Part("lowest-random-ties"), scorers=(mine, Part("requests")))
    policy = compose("mine", recipe, parts, Random(1), max_in_flight=8)
    assert chosen(policy, [make_candidate("a"), make_candidate("b", in_flight=7)]) == "b"
    with pytest.raises(PluginError, match="mixes costs in seconds with shares"):
        compose("mine", replace(recipe, scorers=(mine, Part("first-token"))), parts, Random(1), max_in_flight=8)


def test_a_limit_that_makes_no_sense_is_named(parts: Parts) -> None:
    with pytest.raises(PluginError, match='filter "has-room": max_in_flight must be at least 1'):
        preset(DEFAULT, parts, Random(1), max_in_flight=0)
