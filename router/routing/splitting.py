"""Whether a prompt is computed on one replica for another, which decodes. Knows replicas' roles, the cost of our policy
and how long KV takes to move; the choice among replicas that do both is another policy's.

    pair = prefill on P (of one token) + moving what D lacks + D's own cost with the prompt in its cache, less what of
           D's wait passes meanwhile

against the cost, by the same formula, of the replica that the other policy chose to do both. The cheaper one is taken.
Requests that are not one prompt with one answer are never split.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import msgspec

from router.choice import Alone, Handover, View, Weighed
from router.core import Decision, Demand, Lease, Replica, Slo
from router.ports import Policy
from router.routing.cost import Need, Weights, terms, wait_s
from router.routing.moving import Moving
from router.routing.pointsman import COEFFICIENTS, COMPARE_EVERY, MAX_COMPARED, differs
from router.steps import StepModel

# One that failed to hand over, or to fetch, is left alone for so long.
PAUSE_S = 2.0
# SGLang's servers of either role do nothing by themselves.
HALVES_ONLY = frozenset({"sglang"})
# Engines whose handshake we know.
HANDING = frozenset({"pointsman", "vllm", "sglang"})


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of one pool's available replicas: those that do both, the halves, and those that do both if nobody else can."""

    replicas: Sequence[Replica]
    whole: Sequence[Replica]
    prefill: Sequence[Replica]
    decode: Sequence[Replica]
    rest: Sequence[Replica]
    usual: StepModel


class _Half(msgspec.Struct, gc=False):
    """A replica for its half of the work; seconds."""

    replica: Replica
    held_tokens: int
    cost_s: float
    first_s: float
    wait_s: float


@dataclass(eq=False, slots=True)
class Splitting:
    """`ports.Policy` around another. `can_split(demand)`: is it one prompt with one answer?"""

    inner: Policy
    can_split: Callable[[Demand], bool]
    moving: Moving
    max_in_flight: int
    weights: Weights = field(default_factory=Weights)
    useful_depth_s: float = 8.0
    _parts: dict[str, _Parts] = field(default_factory=dict, init=False)
    _paused: dict[str, float] = field(default_factory=dict, init=False)
    _num_asked: int = field(default=0, init=False)

    def decide(self, demand: Demand, view: View) -> Decision | None:
        parts = self._divided(demand, view)
        if not parts.prefill and not parts.decode:
            return self.inner.decide(demand, view)
        alone = self.inner.decide(demand, _only(view, parts.whole)) if parts.whole else None
        if parts.rest and all(each.id in demand.tried for each in parts.whole):
            alone = self.inner.decide(demand, _only(view, parts.rest))
        pair = self._pair(demand, view, parts)
        if pair is None or not self._pays(demand, view, pair, alone):
            return alone
        if not self.can_split(demand):
            return alone if parts.whole else self.inner.decide(demand, view)  # whoever cannot will say so
        return self._handover(demand, view, pair, "split" if alone is None else alone.policy)

    def about(self) -> Mapping[str, object]:
        return {**self.inner.about(), "splits": "prefill and decode, where a pair costs less"}

    def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
        parts = self._divided(demand, view)
        weighed = list(self.inner.explain(demand, _only(view, parts.whole))) if parts.whole else []
        others = [each for each in view.replicas if each not in parts.whole]
        return [*weighed, *(Weighed(each, 0, f"it is there to {each.spec.role}") for each in others)]

    def placed(self, lease: Lease) -> None:
        self.inner.placed(lease)

    def pause(self, replica_id: str, now: float) -> None:
        """It failed in its half."""
        self._paused[replica_id] = now + PAUSE_S

    def _divided(self, demand: Demand, view: View) -> _Parts:
        """Anew where the replicas are others, and now and then, as their speeds are learned."""
        parts = self._parts.get(demand.pool.model)
        self._num_asked += 1
        if parts is None or parts.replicas is not view.replicas or self._num_asked % COMPARE_EVERY == 0:
            parts = self._parts[demand.pool.model] = _divide(view.replicas)
        return parts

    def _step(self, demand: Demand, replica: Replica) -> StepModel:
        """Noise in what was learned of it is no reason to give it a half."""
        usual = self._parts[demand.pool.model].usual
        return replica.step if differs(replica.step, usual) else usual

    def _pair(self, demand: Demand, view: View, parts: _Parts) -> tuple[_Half, _Half] | None:
        """The cheapest of each role that can speak to each other."""
        found = []
        for engine in {each.engine for each in parts.prefill} & HANDING:
            firsts = [self._prefill(demand, view, each) for each in self._free(parts.prefill, engine, demand, view)]
            if not firsts:
                continue
            first = min(firsts, key=lambda half: half.cost_s)
            free = self._free(parts.decode, engine, demand, view)
            seconds = [self._decode(demand, view, each, first.first_s) for each in free]
            if engine not in HALVES_ONLY:  # else there must be something to fetch
                seconds = [each for each in seconds if each.held_tokens < _kept_tokens(demand)]
            if seconds:
                found.append((first, min(seconds, key=lambda half: half.cost_s)))
        return min(found, key=lambda pair: pair[0].cost_s + pair[1].cost_s, default=None)

    def _free(self, replicas: Sequence[Replica], engine: str | None, demand: Demand, view: View) -> list[Replica]:
        return [
            each
            for each in replicas
            if each.engine == engine
            and each.id not in demand.tried
            and (demand.adapter is None or demand.adapter in each.adapters)
            and each.in_flight + each.sibling_in_flight < self.max_in_flight
            and self._paused.get(each.id, 0.0) <= view.now
            and (each.prefilling == 0 or wait_s(each, view.now) <= self.useful_depth_s)
        ]

    def _prefill(self, demand: Demand, view: View, replica: Replica) -> _Half:
        held = _held_tokens(demand, view, replica)
        need = Need(view.now, demand.prompt, 1.0, held, demand.adapter)
        found = terms(need, replica, self._step(demand, replica), held, 0, self.weights)
        first_s = found.wait + found.prefill + found.adapter + found.round_trip
        return _Half(replica, held, sum(found.by_name.values()), first_s, found.wait)

    def _decode(self, demand: Demand, view: View, replica: Replica, after_s: float) -> _Half:
        """`after_s`: from when on it can fetch."""
        held, kept = _held_tokens(demand, view, replica), _kept_tokens(demand)
        move_s = self.moving.expected_s(replica.id, kept - held, view.now)
        ready_s = after_s + move_s
        need = _need_after(demand, view, kept, ready_s)
        found = terms(need, replica, self._step(demand, replica), kept, 0, self.weights)
        cost_s = sum(found.by_name.values()) + move_s - min(found.wait, ready_s)
        return _Half(replica, held, cost_s, max(ready_s, found.wait), found.wait)

    def _pays(self, demand: Demand, view: View, pair: tuple[_Half, _Half], alone: Decision | None) -> bool:
        if alone is None:
            return True
        held = max(alone.matched_tokens, _held_tokens(demand, view, alone.replica))
        need = Need(view.now, demand.prompt, view.expected_output_tokens, held, demand.adapter, demand.request.slo)
        found = terms(need, alone.replica, self._step(demand, alone.replica), held, 0, self.weights)
        return pair[0].cost_s + pair[1].cost_s < sum(found.by_name.values())

    def _handover(self, demand: Demand, view: View, pair: tuple[_Half, _Half], policy: str) -> Handover:
        first, second = pair
        num_tokens, kept = demand.prompt.num_tokens, _kept_tokens(demand)
        prefill = _alone(demand, first, policy, 1.0)
        alone = _alone(demand, second, policy, view.expected_output_tokens)
        return Handover(
            replica=second.replica,
            policy=policy,
            matched_tokens=kept,
            # Its time until the first token is not that of a prefill: speeds learn nothing from no tokens.
            uncached_tokens=0,
            expected_wait_s=second.first_s,
            prefill_s=second.replica.step.prefill_s(num_tokens - kept, num_tokens),
            output_tokens=view.expected_output_tokens,
            prefill=prefill,
            alone=Alone(**{name: getattr(alone, name) for name in Decision.__struct_fields__}, failed=first.replica.id),
            moved_tokens=kept - second.held_tokens,
        )

    def __repr__(self) -> str:
        return f"<Splitting round {self.inner!r}, {self.moving!r}>"


def _divide(replicas: Sequence[Replica]) -> _Parts:
    prefill = tuple(each for each in replicas if each.spec.role == "prefill" and _hands(each))
    decode = tuple(each for each in replicas if each.spec.role == "decode" and _hands(each))
    able = [each for each in replicas if each.spec.role is None or each.engine not in HALVES_ONLY]
    whole = tuple(each for each in able if each.spec.role != "prefill")
    rest = tuple(each for each in able if each.spec.role == "prefill")
    return _Parts(replicas, whole or rest, prefill, decode, rest if whole else (), _usual(replicas))


def _hands(replica: Replica) -> bool:
    """vLLM's contract over gRPC has no handshake."""
    return not (replica.engine == "vllm" and replica.spec.url.startswith("grpc"))


def _usual(replicas: Sequence[Replica]) -> StepModel:
    """The median of what was learned of each."""
    steps = [each.step for each in islice(replicas, MAX_COMPARED)]
    return StepModel(*(median([getattr(step, name) for step in steps]) for name in COEFFICIENTS))


def _only(view: View, replicas: Sequence[Replica]) -> View:
    if len(replicas) == len(view.replicas):
        return view
    return View(view.now, replicas, view.matches, view.device_matches, view.num_blocks, view.expected_output_tokens)


def _held_tokens(demand: Demand, view: View, replica: Replica) -> int:
    prompt = demand.prompt
    return min(view.matches.get(replica.id, 0) * prompt.block_size, max(0, prompt.num_tokens - 1))


def _kept_tokens(demand: Demand) -> int:
    """What can be fetched: whole blocks, and the last token is computed anew."""
    prompt = demand.prompt
    return max(0, prompt.num_tokens - 1) // prompt.block_size * prompt.block_size


def _need_after(demand: Demand, view: View, kept: int, after_s: float) -> Need:
    slo = demand.request.slo
    if slo is not None and slo.ttft_s is not None:
        slo = Slo(slo.ttft_s - after_s, slo.tpot_s)
    return Need(view.now, demand.prompt, view.expected_output_tokens, kept, demand.adapter, slo)


def _alone(demand: Demand, half: _Half, policy: str, num_output: float) -> Decision:
    """This replica computing what it lacks of the prompt."""
    num_tokens = demand.prompt.num_tokens
    num_new = num_tokens - half.held_tokens
    prefill_s = half.replica.step.prefill_s(num_new, num_tokens)
    return Decision(
        half.replica, policy, half.held_tokens, num_new, half.wait_s, prefill_s=prefill_s, output_tokens=num_output
    )
