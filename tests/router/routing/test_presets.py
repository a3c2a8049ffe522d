from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from router.core import Candidate, Prompt
from router.plugins import PluginError
from router.ports import Policy
from router.routing.presets import NAMES, Parts, compose, open_parts, preset
from router.routing.recipes import Part, Recipe
from tests.router.nouns import make_candidate, make_demand, make_view


@pytest.fixture(scope="module")
def parts() -> Parts:
    return open_parts()


def build(parts: Parts, name: str, seed: int = 1) -> Policy:
    return preset(name, parts, Random(seed), max_in_flight=8)


def chosen(policy: Policy, candidates: list[Candidate], prompt: Prompt | None = None, **fields: object) -> str:
    decision = policy.decide(make_demand(prompt=prompt, **fields), make_view(candidates))  # type: ignore[arg-type]
    assert decision is not None
    return decision.replica.id


def test_policies_have_the_names_that_people_know() -> None:
    assert set(NAMES) == {
        *("round-robin", "random", "least-request", "power-of-two", "consistent-hash", "sglang-cache-aware", "dynamo"),
        *("llm-d-blend", "llm-d-precise", "llm-d-token-aware", "lmetric", "conductor", "preble", "aibrix-prefix"),
        *("dualmap", "vllm-dp", "pointsman"),
    }


def test_an_unknown_preset_suggests_the_nearest(parts: Parts) -> None:
    with pytest.raises(PluginError, match='unknown policy "round-robbin"; did you mean "round-robin"'):
        build(parts, "round-robbin")


@pytest.mark.parametrize("name", NAMES)
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
    assert policy.decide(make_demand(adapter="y"), make_view(candidates)) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_says_who_decided(parts: Parts, name: str) -> None:
    decision = build(parts, name).decide(make_demand(), make_view([make_candidate()]))
    assert decision is not None
    assert decision.policy == name


def test_least_request_takes_the_fewest_with_ties_at_random(parts: Parts) -> None:
    policy = build(parts, "least-request")
    candidates = [make_candidate(name, in_flight=count) for name, count in (("a", 3), ("b", 1), ("c", 1))]
    counts = Counter(chosen(policy, candidates) for _ in range(500))
    assert set(counts) == {"b", "c"}


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
    with pytest.raises(PluginError, match="ByName in share, queued-prefill in seconds"):
        compose("mine", replace(recipe, scorers=(mine, Part("queued-prefill"))), parts, Random(1), max_in_flight=8)


def test_a_limit_that_makes_no_sense_is_named(parts: Parts) -> None:
    with pytest.raises(PluginError, match='filter "has-room": max_in_flight must be at least 1'):
        preset("least-request", parts, Random(1), max_in_flight=0)
