"""Filter -> score -> pick -> Decision. Knows candidates and the ports of a policy's parts; knows no formula, no clock,
no index and no network.

Scorers speak one of two units, and a policy is of one: costs in seconds are added up, shares of 0..1 are blended by
weight. A second is not worth any number of shares, so the two are never mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce

from router.core import Candidate, Decision, Demand
from router.ports import Filter, Picker, Scorer


class Unit(Enum):
    """What a scorer's numbers are. Each scorer class states its own as `unit`."""

    SECONDS = "seconds"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class NamedScorer:
    """A scorer under the name that reasons give it. `weight` counts in a blend only."""

    name: str
    scorer: Scorer
    weight: float = 1.0


@dataclass(eq=False, slots=True)
class FilterScorePick:
    """`ports.Policy` from parts. Raises ValueError where the parts do not fit together."""

    name: str
    filters: Sequence[Filter]
    scorers: Sequence[NamedScorer]
    picker: Picker
    unit: Unit | None = field(init=False)

    def __post_init__(self) -> None:
        self.unit = _common_unit(self.name, self.scorers)
        weighs = getattr(self.picker, "unit", self.unit)
        if weighs is not self.unit:
            raise ValueError(f'policy "{self.name}": its picker needs scorers in {weighs}')

    def decide(self, demand: Demand, candidates: Sequence[Candidate]) -> Decision | None:
        for rule in self.filters:
            candidates = rule.keep(demand, candidates)
        if not candidates:
            return None
        scores = [part.scorer.score(demand, candidates) for part in self.scorers]
        chosen = self.picker.pick(demand, candidates, self._costs(scores, len(candidates)))
        return self._decision(demand, candidates[chosen], scores, chosen)

    def _costs(self, scores: Sequence[Sequence[float]], num_candidates: int) -> Sequence[float]:
        """One lower-is-better number per candidate; all zero where the picker goes by something else."""
        if self.unit is None:
            return [0.0] * num_candidates
        if self.unit is Unit.SECONDS:
            return reduce(_added, scores)
        weights = [part.weight for part in self.scorers]
        total = sum(weights)
        return [
            1.0 - sum(weight * share for weight, share in zip(weights, row, strict=True)) / total
            for row in zip(*scores, strict=True)
        ]

    def _decision(self, demand: Demand, chosen: Candidate, scores: Sequence[Sequence[float]], index: int) -> Decision:
        return Decision(
            replica=chosen.replica,
            policy=self.name,
            matched_tokens=chosen.matched_tokens,
            uncached_tokens=demand.prompt.num_tokens - chosen.matched_tokens,
            expected_wait_s=chosen.replica.expected_wait_s,
            scores={part.name: column[index] for part, column in zip(self.scorers, scores, strict=True)},
        )


def _added(some: Sequence[float], more: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(some, more, strict=True)]


def _common_unit(name: str, scorers: Sequence[NamedScorer]) -> Unit | None:
    """None for a policy without scorers."""
    found = {part.name: getattr(part.scorer, "unit", None) for part in scorers}
    for part in scorers:
        if not isinstance(found[part.name], Unit):
            raise ValueError(f'policy "{name}": scorer "{part.name}" does not state its `unit`')
        if found[part.name] is Unit.SECONDS and part.weight != 1.0:
            raise ValueError(f'policy "{name}": scorer "{part.name}" is a cost in seconds and takes no weight')
        if part.weight <= 0.0:
            raise ValueError(f'policy "{name}": the weight of scorer "{part.name}" must be above 0')
    if len(found) < len(scorers):
        raise ValueError(f'policy "{name}" names a scorer twice')
    units = set(found.values())
    if len(units) > 1:
        raise ValueError(f'policy "{name}" mixes costs in seconds with shares of 0..1: {", ".join(sorted(found))}')
    return units.pop() if units else None
