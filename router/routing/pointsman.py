"""Our own policy: the lowest cost in seconds, for all and not only for this request. Knows replicas, what each holds of
the prompt, and the formula in `cost.py`.

Not every replica is worth a close look: those that hold most of the prompt are, and those with the least to do. So a
decision costs about the same in a fleet of sixty or of a thousand.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from statistics import median
from typing import NamedTuple

from router.choice import View, Weighed
from router.core import Decision, Demand, Lease, Prompt, Replica
from router.routing.cost import Need, Terms, Weights, terms, wait_s
from router.routing.ring import affinity
from router.steps import StepModel

# Looked at closely: all of a fleet so small; else so many of those that seem best,
FEW, MAX_BEST = 16, 6
# of so many that hold most, and so many in turn.
MAX_HOLDERS, WINDOW = 16, 16
# Learned times within so much of the fleet's median count as the median; how often, and for how many, that is found.
SPEED_NOISE = 0.25
COMPARE_EVERY, MAX_COMPARED = 64, 256
COEFFICIENTS = ("base_s", "token_s", "attention_s", "sequence_s", "context_s")
# A step as it often is: sequences that decode, and their context.
TYPICAL = (16, 100_000)
MAX_SESSIONS = 50_000
# Without a tokenizer nobody knows what is cached: so much of a session's last prompt is taken to be.
SESSION_SHARE = 0.5


class Option(NamedTuple):
    """A replica looked at closely. `cost` is the sum of the terms, in seconds."""

    cost: float
    replica: Replica
    matched_tokens: int
    terms: Terms


@dataclass(eq=False, slots=True)
class _Fleet:
    """What is known of one set of replicas, as long as it stays the same. `odd` are those that are really faster or
    slower than most, by id; all others are taken to be alike, as noise in what was learned is no reason to prefer one.
    """

    replicas: Sequence[Replica]
    by_id: dict[str, Replica]
    step: StepModel = field(default_factory=StepModel)
    odd: dict[str, StepModel] = field(default_factory=dict)
    num_asked: int = 0
    at: int = 0
    best: list[Replica] = field(default_factory=list)

    def compare(self) -> None:
        steps = [(each.id, each.step) for each in islice(self.replicas, MAX_COMPARED)]
        self.step = StepModel(*(median([getattr(step, name) for _, step in steps]) for name in COEFFICIENTS))
        self.odd = {id: step for id, step in steps if _differs(step, self.step)}


@dataclass(eq=False, slots=True)
class Pointsman:
    """`ports.Policy`. A replica takes no more requests than `max_in_flight`, and no more once `useful_depth_s` of
    prefill is queued there: what waits with us instead goes where there is room first, by the newest knowledge.

    Costs within `tie_s` of the lowest are ties (None: half of the smallest difference that is real, the prefill of one
    block or the step of one request); of those, fewer cached blocks first, then the least recently used, then by the
    session's or the prompt's hash, which is the same in every router.
    """

    name: str
    max_in_flight: int
    weights: Weights = field(default_factory=Weights)
    useful_depth_s: float = 8.0
    tie_s: float | None = None
    _fleets: dict[str, _Fleet] = field(default_factory=dict, init=False)
    _sessions: "OrderedDict[str, tuple[str, int]]" = field(default_factory=OrderedDict, init=False)

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        if self.tie_s is not None and self.tie_s < 0.0:
            raise ValueError("tie_s must not be negative")

    def decide(self, demand: Demand, view: View) -> Decision | None:
        options = self.options(demand, view)
        if not options:
            return None
        best = self._best(demand, view, options)
        return Decision(
            replica=best.replica,
            policy=self.name,
            matched_tokens=best.matched_tokens,
            uncached_tokens=demand.prompt.num_tokens - best.matched_tokens,
            expected_wait_s=best.terms.wait,
            scores=best.terms.by_name,
            prefill_s=best.terms.own_prefill_s,
            output_tokens=view.expected_output_tokens,
        )

    def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
        fleet = self._fleet(demand, view)
        options = {each.replica.id: each for each in self._weighed(demand, view, fleet, view.replicas)}
        return [
            Weighed(each, found.matched_tokens, None, found.cost, found.terms.by_name)
            if (found := options.get(each.id)) is not None
            else Weighed(each, view.matches.get(each.id, 0) * demand.prompt.block_size, self._why_not(demand, each))
            for each in view.replicas
        ]

    def _why_not(self, demand: Demand, replica: Replica) -> str:
        if replica.id in demand.tried:
            return "it failed this request before"
        if demand.adapter is not None and demand.adapter not in replica.adapters:
            return f"it does not serve the adapter {demand.adapter}"
        if replica.in_flight + replica.sibling_in_flight >= self.max_in_flight:
            return f"it has {self.max_in_flight} requests in flight"
        return f"more than {self.useful_depth_s:g} s of prefill are queued there"

    def placed(self, lease: Lease) -> None:
        session = lease.demand.request.session
        if session is not None:
            self._sessions[session] = (lease.replica.id, lease.demand.prompt.num_tokens)
            self._sessions.move_to_end(session)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def options(self, demand: Demand, view: View) -> list[Option]:
        """The replicas that were worth a close look and may take the demand, with what each would cost."""
        fleet = self._fleet(demand, view)
        found = self._weighed(demand, view, fleet, self._looked_at(demand, view, fleet))
        if not found and len(view.replicas) > FEW:
            found = self._weighed(demand, view, fleet, view.replicas)
        return found

    def _weighed(self, demand: Demand, view: View, fleet: _Fleet, replicas: Sequence[Replica]) -> list[Option]:
        matches, device, prompt = view.matches, view.device_matches, demand.prompt
        block_size, shared, most = prompt.block_size, _shared_tokens(prompt), max(0, prompt.num_tokens - 1)
        guess_id, guess_tokens = self._guess(demand)
        free = [each for each in replicas if self._may_take(demand, view.now, each)]
        # An engine computes at least the last token, whatever it has cached.
        matched = [min(matches.get(each.id, 0) * block_size, most) for each in free]
        counted = [
            max(tokens, shared, guess_tokens if each.id == guess_id else 0)
            for each, tokens in zip(free, matched, strict=True)
        ]
        need = _need(demand, view, max(counted, default=0))
        found = []
        for each, tokens, held in zip(free, matched, counted, strict=True):
            num_host = 0 if device is matches else (matches.get(each.id, 0) - device.get(each.id, 0)) * block_size
            worth = terms(need, each, fleet.odd.get(each.id, fleet.step), held, num_host, self.weights)
            found.append(Option(worth.total, each, tokens, worth))
        return found

    def _may_take(self, demand: Demand, now: float, replica: Replica) -> bool:
        if replica.in_flight + replica.sibling_in_flight >= self.max_in_flight or replica.id in demand.tried:
            return False
        if demand.adapter is not None and demand.adapter not in replica.adapters:
            return False
        return replica.prefilling == 0 or wait_s(replica, now) <= self.useful_depth_s

    def _best(self, demand: Demand, view: View, options: Sequence[Option]) -> Option:
        lowest = min(options, key=lambda option: option.cost)
        tie_s = _half_step_s(demand.prompt, lowest.replica.step) if self.tie_s is None else self.tie_s
        tied = [each for each in options if each.cost <= lowest.cost + tie_s]
        if len(tied) == 1:
            return lowest
        key = demand.request.session

        def rank(option: Option) -> tuple[int, float, int]:
            replica = option.replica
            return view.num_blocks(replica.id), replica.last_used, affinity(replica.id, key, demand.prompt)

        return min(tied, key=rank)

    def _fleet(self, demand: Demand, view: View) -> _Fleet:
        fleet = self._fleets.get(demand.pool.model)
        if fleet is None or fleet.replicas is not view.replicas:
            by_id = {replica.id: replica for replica in view.replicas}
            fleet = _Fleet(view.replicas, by_id)
            self._fleets[demand.pool.model] = fleet
        if fleet.num_asked % COMPARE_EVERY == 0:
            fleet.compare()
        fleet.num_asked += 1
        return fleet

    def _looked_at(self, demand: Demand, view: View, fleet: _Fleet) -> Sequence[Replica]:
        """The replicas to look at closely: all of few; else those that seem best of the holders, of some whose turn it
        is, and of those that seemed best the last time."""
        replicas = view.replicas
        if len(replicas) <= FEW or demand.adapter is not None or demand.tried:
            return replicas
        start, fleet.at = fleet.at, (fleet.at + WINDOW) % len(replicas)
        by_id, matches, now = fleet.by_id, view.matches, view.now
        holders = [by_id[id] for id in islice(matches, MAX_HOLDERS) if id in by_id]
        asked = list(dict.fromkeys([*replicas[start : start + WINDOW], *fleet.best, *holders]))
        block_s = demand.prompt.block_size * fleet.step.token_s
        seeming_s = [
            (left if (left := each.prefilled_at - now) > 0.0 else 0.0)
            + each.in_flight * each.step.base_s
            - matches.get(each.id, 0) * block_s
            for each in asked
        ]
        best = nsmallest(MAX_BEST, range(len(asked)), key=seeming_s.__getitem__)
        fleet.best = [asked[at] for at in best]
        return fleet.best

    def _guess(self, demand: Demand) -> tuple[str | None, int]:
        """Who served the session last, and how many tokens it may hold for it, where the index cannot know."""
        prompt, session = demand.prompt, demand.request.session
        if session is None or prompt.is_exact or session not in self._sessions:
            return None, 0
        id, num_tokens = self._sessions[session]
        return id, int(SESSION_SHARE * min(num_tokens, max(0, prompt.num_tokens - 1)))

    def __repr__(self) -> str:
        return f"<Pointsman {self.name} {len(self._sessions)} sessions>"


def _need(demand: Demand, view: View, most_held: int) -> Need:
    request = demand.request
    return Need(view.now, demand.prompt, view.expected_output_tokens, most_held, demand.adapter, request.slo)


def _differs(step: StepModel, usual: StepModel) -> bool:
    pairs = ((step.token_s, usual.token_s), (step.decode_s(*TYPICAL), usual.decode_s(*TYPICAL)))
    return any(abs(own - other) > SPEED_NOISE * other for own, other in pairs)


def _half_step_s(prompt: Prompt, step: StepModel) -> float:
    return 0.5 * min(prompt.block_size * step.token_s, step.base_s)


def _shared_tokens(prompt: Prompt) -> int:
    """Template tokens that can be reused: engines reuse whole blocks, and compute at least the last token. As everybody
    has them, they are no reason to prefer one."""
    whole = prompt.num_template_tokens - prompt.num_template_tokens % prompt.block_size
    return max(0, min(whole, prompt.num_tokens - 1))
