from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import pytest

from router.core import Candidate, Demand
from router.routing.filters import NotTried
from router.routing.pickers import AtRandom, LowestRandomTies
from router.routing.policy import FilterScorePick, NamedScorer, Unit
from tests.router.nouns import make_candidate, make_demand, make_prompt


@dataclass(frozen=True)
class Cost:
    """A cost by replica id."""

    by_id: dict[str, float]
    unit: ClassVar[Unit] = Unit.SECONDS

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        return [self.by_id[candidate.replica.id] for candidate in candidates]


@dataclass(frozen=True)
class Share(Cost):
    unit: ClassVar[Unit] = Unit.SHARE


class Unitless:
    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
        return [0.0] * len(candidates)


def policy(*scorers: NamedScorer, picker: object = None) -> FilterScorePick:
    return FilterScorePick("p", [NotTried()], scorers, picker or LowestRandomTies(Random(1)))  # type: ignore[arg-type]


AB = [make_candidate("a", matched_tokens=48), make_candidate("b", matched_tokens=16, foreign_requests=2)]


def test_a_decision_says_what_was_chosen_and_why() -> None:
    made = policy(NamedScorer("x", Cost({"a": 3.0, "b": 1.0})), NamedScorer("y", Cost({"a": 0.0, "b": 1.5})))
    decision = made.choose(make_demand(prompt=make_prompt(100)), AB)
    assert decision is not None
    assert decision.replica is AB[1].replica
    assert (decision.matched_tokens, decision.uncached_tokens) == (16, 84)
    assert decision.expected_wait_s == AB[1].replica.expected_wait_s > 0.0
    assert decision.scores == {"x": 1.0, "y": 1.5}
    assert decision.reason == "policy=p; matched_tokens=16; expected_wait_ms=5.3"


def test_filters_come_before_scores() -> None:
    made = policy(NamedScorer("x", Cost({"b": 9.0})))
    decision = made.choose(make_demand(tried=frozenset({"a"})), AB)
    assert decision is not None
    assert decision.replica.id == "b"


def test_no_candidate_left_is_no_decision() -> None:
    assert policy().choose(make_demand(tried=frozenset("ab")), AB) is None
    assert policy().choose(make_demand(), []) is None


def test_shares_are_blended_by_weight_and_higher_wins() -> None:
    x, y = Share({"a": 1.0, "b": 0.0}), Share({"a": 0.0, "b": 1.0})
    for weight, winner in ((0.5, "b"), (2.0, "a")):
        decision = policy(NamedScorer("x", x, weight), NamedScorer("y", y)).choose(make_demand(), AB)
        assert decision is not None
        assert decision.replica.id == winner


def test_a_policy_without_scores_leaves_it_to_its_picker() -> None:
    made = policy(picker=AtRandom(Random(1)))
    assert {made.choose(make_demand(), AB).replica.id for _ in range(50)} == {"a", "b"}  # type: ignore[union-attr]


def test_seconds_and_shares_are_never_mixed() -> None:
    with pytest.raises(ValueError, match='policy "p" mixes units: x in seconds, y in share'):
        policy(NamedScorer("x", Cost({})), NamedScorer("y", Share({})))


@pytest.mark.parametrize(
    ("scorers", "message"),
    [
        ([NamedScorer("x", Unitless())], 'scorer "x" does not state its `unit`'),
        ([NamedScorer("x", Cost({}), 2.0)], 'scorer "x" is a cost in seconds and takes no weight'),
        ([NamedScorer("x", Share({}), 0.0)], 'weight of scorer "x" must be above 0'),
        ([NamedScorer("x", Share({})), NamedScorer("x", Share({}))], "names a scorer twice"),
    ],
)
def test_scorers_that_do_not_fit_are_refused(scorers: list[NamedScorer], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(*scorers)


def test_a_scorer_that_forgets_a_candidate_is_an_error_not_a_wrong_choice() -> None:
    class Short(Cost):
        def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]:
            return [0.0]

    with pytest.raises(ValueError, match="shorter"):
        policy(NamedScorer("x", Cost({"a": 0.0, "b": 0.0})), NamedScorer("y", Short({}))).choose(make_demand(), AB)
