"""Filter -> score -> pick -> Decision. Knows candidates and the ports of a policy's parts; knows no formula, no clock,
no index and no network.

Scorers speak one of three units, and a policy is of one: costs in seconds, or in work (tokens, blocks, requests), are
added up; shares of 0..1 are blended by weight. A second is not worth any number of shares, so they are never mixed.

A part that keeps books of what it chose has a method `placed(lease)`, called once the choice is a lease.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce

from router.choice import View, Weighed
from router.core import Candidate, Decision, Demand, Lease
from router.ports import Bookkeeper, Filter, Picker, Scorer


class Unit(StrEnum):
    """What a scorer's numbers are. Each scorer class states its own as `unit`."""

    SECONDS = "seconds"
    WORK = "work"
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
    _books: Sequence[Callable[[Lease], None]] = field(init=False)

    def __post_init__(self) -> None:
        self.unit = _common_unit(self.name, self.scorers)
        parts: list[object] = [*self.filters, *(part.scorer for part in self.scorers), self.picker]
        self._books = [part.placed for part in parts if isinstance(part, Bookkeeper)]

    def decide(self, demand: Demand, view: View) -> Decision | None:
        return self.choose(demand, candidates(demand, view), view.expected_output_tokens)

    def choose(
        self, demand: Demand, candidates: Sequence[Candidate], expected_output_tokens: float = 0.0
    ) -> Decision | None:
        """None when no candidate passes the filters."""
        for rule in self.filters:
            candidates = rule.keep(demand, candidates)
        if not candidates:
            return None
        scores = [part.scorer.score(demand, candidates) for part in self.scorers]
        chosen = self.picker.pick(demand, candidates, self._costs(scores, len(candidates)))
        return self._decision(demand, candidates[chosen], scores, chosen, expected_output_tokens)

    def about(self) -> Mapping[str, object]:
        """Parts by their classes; a weight is the share of the blend that a scorer has."""
        total = sum(part.weight for part in self.scorers)
        is_blend = self.unit is Unit.SHARE
        return {
            "name": self.name,
            "filters": [type(each).__name__ for each in self.filters],
            "scorers": {part.name: round(part.weight / total, 4) if is_blend else None for part in self.scorers},
            "unit": self.unit,
            "picker": type(self.picker).__name__,
        }

    def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
        """Excluded by the first filter that drops it. Pickers may go by more than the cost."""
        kept: Sequence[Candidate] = candidates(demand, view)
        weighed = []
        for rule in self.filters:
            remaining = rule.keep(demand, kept)
            ids = {each.replica.id for each in remaining}
            out = [each for each in kept if each.replica.id not in ids]
            reason = type(rule).__name__
            weighed += [Weighed(each.replica, each.matched_tokens, reason, unit=self.unit) for each in out]
            kept = remaining
        scores = [part.scorer.score(demand, kept) for part in self.scorers]
        names = [part.name for part in self.scorers]
        for at, (each, cost) in enumerate(zip(kept, self._costs(scores, len(kept)), strict=True)):
            own = {name: column[at] for name, column in zip(names, scores, strict=True)}
            weighed.append(Weighed(each.replica, each.matched_tokens, None, cost, own, self.unit))
        return weighed

    def placed(self, lease: Lease) -> None:
        for book in self._books:
            book(lease)

    def _costs(self, scores: Sequence[Sequence[float]], num_candidates: int) -> Sequence[float]:
        """One lower-is-better number per candidate; all zero where the picker goes by something else."""
        if self.unit is None:
            return [0.0] * num_candidates
        if self.unit is not Unit.SHARE:
            return reduce(_added, scores)
        weights = [part.weight for part in self.scorers]
        total = sum(weights)
        return [
            1.0 - sum(weight * share for weight, share in zip(weights, row, strict=True)) / total
            for row in zip(*scores, strict=True)
        ]

    def _decision(
        self,
        demand: Demand,
        chosen: Candidate,
        scores: Sequence[Sequence[float]],
        index: int,
        expected_output_tokens: float,
    ) -> Decision:
        num_tokens = demand.prompt.num_tokens
        uncached_tokens = num_tokens - chosen.matched_tokens
        return Decision(
            replica=chosen.replica,
            policy=self.name,
            matched_tokens=chosen.matched_tokens,
            uncached_tokens=uncached_tokens,
            expected_wait_s=chosen.replica.expected_wait_s,
            scores={part.name: column[index] for part, column in zip(self.scorers, scores, strict=True)},
            prefill_s=chosen.replica.step.prefill_s(uncached_tokens, num_tokens),
            output_tokens=expected_output_tokens,
        )


def candidates(demand: Demand, view: View) -> list[Candidate]:
    """All of the view's replicas, as filters, scorers and pickers see them."""
    prompt, matches, num_blocks = demand.prompt, view.matches, view.num_blocks
    # An engine computes at least the last token, whatever it has cached.
    most_tokens = max(0, prompt.num_tokens - 1)
    return [
        Candidate(
            replica,
            min(matches[replica.id] * prompt.block_size, most_tokens) if replica.id in matches else 0,
            num_blocks(replica.id),
        )
        for replica in view.replicas
    ]


def _added(some: Sequence[float], more: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(some, more, strict=True)]


def _common_unit(name: str, scorers: Sequence[NamedScorer]) -> Unit | None:
    """None for a policy without scorers."""
    found = {part.name: getattr(part.scorer, "unit", None) for part in scorers}
    for part in scorers:
        if not isinstance(found[part.name], Unit):
            raise ValueError(f'policy "{name}": scorer "{part.name}" does not state its `unit`')
        if found[part.name] is not Unit.SHARE and part.weight != 1.0:
            raise ValueError(
                f'policy "{name}": scorer "{part.name}" is a cost in {found[part.name]} and takes no weight'
            )
        if part.weight <= 0.0:
            raise ValueError(f'policy "{name}": the weight of scorer "{part.name}" must be above 0')
    if len(found) < len(scorers):
        raise ValueError(f'policy "{name}" names a scorer twice')
    units = set(found.values())
    if len(units) > 1:
        listed = ", ".join(f"{part} in {found[part]}" for part in sorted(found))
        raise ValueError(f'policy "{name}" mixes units: {listed}')
    return units.pop() if units else None
