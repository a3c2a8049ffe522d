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

from router.core import Decision, Demand, Lease, Prompt, Replica, StepModel, View
from router.routing.cost import Need, Terms, Weights, terms, wait_s
from router.routing.ring import affinity

# Looked at closely: all of a fleet so small; else so many of those that hold most, and of those with the least to do.
FEW, MAX_HOLDERS, MAX_IDLEST = 12, 8, 6
# Of larger fleets so many in turn are asked what they have to do, besides those found idle the last time.
WINDOW = 96
# A learned speed within so much of the fleet's median counts as the median for our own tokens: noise is no reason.
SPEED_NOISE = 0.25
MEDIAN_EVERY = 64
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
    """What is known of one set of replicas, as long as it stays the same."""

    replicas: Sequence[Replica]
    by_id: dict[str, Replica]
    token_s: float = 0.0
    num_asked: int = 0
    at: int = 0
    idlest: list[Replica] = field(default_factory=list)


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
        looked_at = view.replicas if len(view.replicas) <= FEW else self._worth_a_look(demand, view, fleet)
        need, found = _need(demand, view), []
        matches, device, prompt = view.matches, view.device_matches, demand.prompt
        shared, most = _shared_tokens(prompt), max(0, prompt.num_tokens - 1)
        guess_id, guess_tokens = self._guess(demand)
        for replica in looked_at:
            if not self._may_take(demand, view, replica):
                continue
            id = replica.id
            num_blocks = matches.get(id, 0)
            # An engine computes at least the last token, whatever it has cached.
            matched = min(num_blocks * prompt.block_size, most)
            num_host = (num_blocks - device.get(id, 0)) * prompt.block_size if device is not matches else 0
            counted = max(matched, shared, guess_tokens if id == guess_id else 0)
            num_shared = replica.shared_tokens(prompt) if replica.kv_capacity_tokens else 0
            step = _levelled(replica.step, fleet.token_s)
            worth = terms(need, replica, step, counted, num_host, num_shared, self.weights)
            found.append(Option(worth.total, replica, matched, worth))
        return found

    def _may_take(self, demand: Demand, view: View, replica: Replica) -> bool:
        if replica.in_flight + replica.sibling_in_flight >= self.max_in_flight or replica.id in demand.tried:
            return False
        if demand.adapter is not None and demand.adapter not in replica.adapters:
            return False
        return replica.prefilling == 0 or wait_s(replica, view.now) <= self.useful_depth_s

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
            fleet = _Fleet(view.replicas, {replica.id: replica for replica in view.replicas})
            self._fleets[demand.pool.model] = fleet
        if fleet.num_asked % MEDIAN_EVERY == 0:
            fleet.token_s = median([replica.step.token_s for replica in islice(view.replicas, WINDOW)])
        fleet.num_asked += 1
        return fleet

    def _worth_a_look(self, demand: Demand, view: View, fleet: _Fleet) -> Sequence[Replica]:
        """The holders of most, and the idlest."""
        now, by_id = view.now, fleet.by_id
        looked_at = {id: by_id[id] for id in islice(view.matches, MAX_HOLDERS) if id in by_id}
        rest = self._in_turn(demand, view, fleet)
        fleet.idlest = nsmallest(MAX_IDLEST, rest, key=lambda replica: _busy_s(replica, now))
        looked_at.update({replica.id: replica for replica in fleet.idlest})
        return list(looked_at.values())

    def _in_turn(self, demand: Demand, view: View, fleet: _Fleet) -> Sequence[Replica]:
        """Those that may take the demand: of all, or in a large fleet, of those whose turn it is to be asked."""
        replicas = view.replicas
        if demand.adapter is not None or len(replicas) <= WINDOW:
            asked = replicas
        else:
            start, fleet.at = fleet.at, (fleet.at + WINDOW) % len(replicas)
            asked = [*replicas[start : start + WINDOW], *fleet.idlest]
        free = [replica for replica in asked if self._may_take(demand, view, replica)]
        if free or asked is replicas:
            return free
        return [replica for replica in replicas if self._may_take(demand, view, replica)]

    def _guess(self, demand: Demand) -> tuple[str | None, int]:
        """Who served the session last, and how many tokens it may hold for it, where the index cannot know."""
        prompt, session = demand.prompt, demand.request.session
        if session is None or prompt.is_exact or session not in self._sessions:
            return None, 0
        id, num_tokens = self._sessions[session]
        return id, int(SESSION_SHARE * min(num_tokens, max(0, prompt.num_tokens - 1)))

    def __repr__(self) -> str:
        return f"<Pointsman {self.name} {len(self._sessions)} sessions>"


def _need(demand: Demand, view: View) -> Need:
    slo = demand.request.slo
    return Need(
        view.now,
        demand.prompt.num_tokens,
        view.expected_output_tokens,
        demand.adapter,
        None if slo is None else slo.ttft_s,
        None if slo is None else slo.tpot_s,
    )


def _busy_s(replica: Replica, now: float) -> float:
    """A rough rank of how busy it is, cheap enough for many."""
    left_s = replica.prefilled_at - now
    running_s = replica.num_running * replica.step.base_s
    return (left_s if left_s > 0.0 else 0.0) + running_s


def _levelled(step: StepModel, token_s: float) -> StepModel:
    return (
        step
        if abs(step.token_s - token_s) > SPEED_NOISE * token_s
        else StepModel(step.base_s, token_s, step.attention_s, step.sequence_s, step.context_s)
    )


def _half_step_s(prompt: Prompt, step: StepModel) -> float:
    return 0.5 * min(prompt.block_size * step.token_s, step.base_s)


def _shared_tokens(prompt: Prompt) -> int:
    """Template tokens that can be reused: engines reuse whole blocks, and compute at least the last token. As everybody
    has them, they are no reason to prefer one."""
    whole = prompt.num_template_tokens - prompt.num_template_tokens % prompt.block_size
    return max(0, min(whole, prompt.num_tokens - 1))
