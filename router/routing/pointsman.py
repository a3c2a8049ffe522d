"""Our own policy: the lowest cost in seconds, for all and not only for this request. Knows replicas, what each holds of
the prompt, and the formula in `cost.py`.

Not every replica is worth a close look: those that hold most of the prompt are, and those with the least to do. So a
decision costs about the same in a fleet of sixty or of a thousand.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from itertools import islice
from statistics import median

import msgspec

from router.choice import View, Weighed
from router.core import Decision, Demand, Lease, Prompt, Replica
from router.routing.cost import Need, Weights, expected_wait_s, terms, total_s, wait_s
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


class Option(msgspec.Struct, gc=False):
    """A replica looked at closely, and what it would cost in seconds. `matched_tokens` are cached there as far as is
    known, `held_tokens` are taken to be, `host_tokens` of them in host memory; prefill is queued for `queued_s`."""

    replica: Replica
    step: StepModel
    matched_tokens: int
    held_tokens: int
    host_tokens: int
    queued_s: float
    cost: float = 0.0


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
        self.odd = {id: step for id, step in steps if differs(step, self.step)}


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
        num_tokens = demand.prompt.num_tokens
        return Decision(
            replica=best.replica,
            policy=self.name,
            matched_tokens=best.matched_tokens,
            uncached_tokens=num_tokens - best.matched_tokens,
            expected_wait_s=expected_wait_s(best.replica, best.step, best.queued_s, num_tokens),
            prefill_s=best.step.prefill_s(num_tokens - best.held_tokens, num_tokens),
            output_tokens=view.expected_output_tokens,
        )

    def about(self) -> Mapping[str, object]:
        return {"name": self.name, "weights": asdict(self.weights), "useful_depth_s": self.useful_depth_s}

    def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
        options = self._weighed(demand, view, self._fleet(demand, view), view.replicas)
        need, found = _need(demand, view, options), {each.replica.id: each for each in options}
        return [
            self._explained(need, option)
            if (option := found.get(each.id)) is not None
            else Weighed(each, view.matches.get(each.id, 0) * demand.prompt.block_size, self._why_not(demand, each))
            for each in view.replicas
        ]

    def _explained(self, need: Need, option: Option) -> Weighed:
        found = terms(need, option.replica, option.step, option.held_tokens, option.host_tokens, self.weights)
        return Weighed(option.replica, option.matched_tokens, None, option.cost, found.by_name)

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
        options = self._places(demand, view, fleet, replicas)
        need, weights = _need(demand, view, options), self.weights
        for each in options:
            each.cost = total_s(
                need, each.replica, each.step, each.queued_s, each.held_tokens, each.host_tokens, weights
            )
        return options

    def _places(self, demand: Demand, view: View, fleet: _Fleet, replicas: Sequence[Replica]) -> list[Option]:
        """Those that may take the demand, without their costs."""
        matches, device, prompt, now = view.matches, view.device_matches, demand.prompt, view.now
        # An engine computes at least the last token, whatever it has cached.
        block_size, most = prompt.block_size, max(0, prompt.num_tokens - 1)
        shared, (guess_id, guess_tokens) = _shared_tokens(prompt), self._guess(demand)
        step, odd, is_plain = fleet.step, fleet.odd, demand.adapter is None and not demand.tried
        max_in_flight, useful_depth_s, found = self.max_in_flight, self.useful_depth_s, []
        for each in replicas:
            if each.in_flight + each.sibling_in_flight >= max_in_flight:
                continue
            id, queued_s = each.id, wait_s(each, now)
            if (each.prefilling and queued_s > useful_depth_s) or not (is_plain or _serves(demand, each)):
                continue
            num_blocks = matches.get(id, 0)
            matched = held = min(num_blocks * block_size, most)
            if held < shared:
                held = shared
            if id == guess_id and held < guess_tokens:
                held = guess_tokens
            num_host = 0 if device is matches else (num_blocks - device.get(id, 0)) * block_size
            found.append(Option(each, odd.get(id, step), matched, held, num_host, queued_s))
        return found

    def _best(self, demand: Demand, view: View, options: Sequence[Option]) -> Option:
        lowest = options[0]
        for each in options:
            if each.cost < lowest.cost:
                lowest = each
        most_s = lowest.cost + (_half_step_s(demand.prompt, lowest.replica.step) if self.tie_s is None else self.tie_s)
        tied = [each for each in options if each.cost <= most_s]
        if len(tied) == 1:
            return lowest
        ranks = [(view.num_blocks(each.replica.id), each.replica.last_used) for each in tied]
        first = min(ranks)
        if ranks.count(first) == 1:
            return tied[ranks.index(first)]
        key, equal = demand.request.session, [each for each, rank in zip(tied, ranks, strict=True) if rank == first]
        return min(equal, key=lambda option: affinity(option.replica.id, key, demand.prompt))

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


def _serves(demand: Demand, replica: Replica) -> bool:
    return replica.id not in demand.tried and (demand.adapter is None or demand.adapter in replica.adapters)


def _need(demand: Demand, view: View, options: Sequence[Option]) -> Need:
    most_held = max([each.held_tokens for each in options], default=0)
    return Need(view.now, demand.prompt, view.expected_output_tokens, most_held, demand.adapter, demand.request.slo)


def differs(step: StepModel, usual: StepModel) -> bool:
    """Really, and not by the noise of what was learned?"""
    pairs = ((step.token_s, usual.token_s), (step.decode_s(*TYPICAL), usual.decode_s(*TYPICAL)))
    return any(abs(own - other) > SPEED_NOISE * other for own, other in pairs)


def _half_step_s(prompt: Prompt, step: StepModel) -> float:
    return 0.5 * min(prompt.block_size * step.token_s, step.base_s)


def _shared_tokens(prompt: Prompt) -> int:
    """Template tokens that can be reused: engines reuse whole blocks, and compute at least the last token. As everybody
    has them, they are no reason to prefer one."""
    whole = prompt.num_template_tokens - prompt.num_template_tokens % prompt.block_size
    return max(0, min(whole, prompt.num_tokens - 1))
