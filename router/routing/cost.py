"""What it costs everybody, in seconds, to place a request on a replica. Knows the replica's counts and learned speeds,
and the request's tokens; knows no other replica and chooses nothing.

    wait        prefill queued there at its speed, less what is done of it; half a step where something decodes
    prefill     our uncached tokens, attention to the cached ones included, and the steps that they take; host memory's
                tokens at a share of it
    adapter     loading ours where it is not resident, waiting for a slot, and slower steps for all that run there
    round_trip  to its region and back
    decode      a share of our own decoding: slow steps there are ours as well
    delay       a share of what our prefill delays each running decode, and a larger one where the prefill before ours
                is still to end: that answer may be short, with few tokens for the delay to be spread over
    reading     a share of what the reading of our KV adds to the steps of each running decode
    eviction    computing anew what our new blocks evict, as far as it is likely to be asked for again
    copy        as much again and more for those of our new blocks that another replica holds already
    room        the share of the KV cache that we would fill and nobody else, for as long as we decode, the fuller it is
    lateness    what an SLO of the request would be missed by, weighed heavily

The first four are our own first token; the others are weighed by `Weights`. `terms` says them one by one,
`total_s` their sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from router.core import Prompt, Replica, Slo
from router.steps import StepModel

# Prompt tokens that an engine computes in one step.
CHUNK_TOKENS = 8192
# Fetching a token's KV from host memory instead of computing it.
HOST_SHARE = 0.06
# Below this share of the KV cache in use, room in it costs nothing; above the other, it gets no scarcer.
LEAST_USED, MOST_USED = 0.1, 0.95


@dataclass(frozen=True, slots=True)
class Weights:
    """How much a second of others, or later, counts against one of our first token."""

    decode: float = 0.1
    delay: float = 0.07
    before: float = 0.4
    reading: float = 0.05
    eviction: float = 0.5
    copy: float = 1.0
    room: float = 2.0
    mixing: float = 0.1
    lateness: float = 10.0


class Need(msgspec.Struct, frozen=True, gc=False):
    """What of a request its cost depends on; `num_output` tokens are expected, and `most_held` of the prompt's are
    cached at the replica that holds most."""

    now: float
    prompt: Prompt
    num_output: float
    most_held: int
    adapter: str | None = None
    slo: Slo | None = None


TERMS = (
    "wait",
    "prefill",
    "adapter",
    "round_trip",
    "decode",
    "delay",
    "reading",
    "eviction",
    "copy",
    "room",
    "lateness",
)


class Terms(msgspec.Struct, frozen=True, gc=False):
    """Seconds each, as the file's docstring says; of `prefill`, `own_prefill_s` is computing our new tokens."""

    wait: float
    prefill: float
    adapter: float
    round_trip: float
    decode: float
    delay: float
    reading: float
    eviction: float
    copy: float
    room: float
    lateness: float
    own_prefill_s: float

    @property
    def by_name(self) -> Mapping[str, float]:
        return {name: getattr(self, name) for name in TERMS}


def wait_s(replica: Replica, now: float) -> float:
    """Until a prefill sent now would begin. What is overdue is taken to be one request; the others have not begun."""
    left_s = replica.prefilled_at - now
    if replica.prefilling > 0:
        behind_s = replica.prefilling_s * (1.0 - 1.0 / replica.prefilling)
        if left_s < behind_s:
            left_s = behind_s
    elif left_s < 0.0:
        left_s = 0.0
    return left_s + (replica.sibling_prefilling_tokens + replica.foreign_tokens) * replica.step.token_s


def expected_wait_s(replica: Replica, step: StepModel, queued_s: float, num_tokens: int) -> float:
    """Until the prefill of so long a prompt would begin, where prefill is queued for `queued_s`."""
    if replica.num_running <= 0:
        return queued_s
    return queued_s + 0.5 * step.decode_s(replica.num_running + 1, replica.context_tokens + num_tokens)


def terms(need: Need, replica: Replica, step: StepModel, num_matched: int, num_host: int, weights: Weights) -> Terms:
    """`num_matched` tokens of the prompt are cached there, `num_host` of them in host memory only; `step` is what
    the replica's steps are taken to take."""
    token_s, num_tokens, num_output = step.token_s, need.prompt.num_tokens, need.num_output
    num_new, num_running = num_tokens - num_matched, replica.num_running
    next_s = step.decode_s(num_running + 1, replica.context_tokens + num_tokens)
    wait = expected_wait_s(replica, step, wait_s(replica, need.now), num_tokens)
    own_s = num_new * (token_s + step.attention_s * (num_tokens - 0.5 * num_new))
    prefill = own_s + next_s * (1.0 + num_new // CHUNK_TOKENS) + num_host * HOST_SHARE * token_s
    adapter = _adapter_s(need, replica, next_s * num_output, num_running, weights)
    first_s = wait + prefill + adapter + replica.round_trip_s
    return Terms(
        wait,
        prefill,
        adapter,
        replica.round_trip_s,
        weights.decode * num_output * next_s,
        own_s * (weights.delay * num_running + weights.before * (replica.prefilling - replica.silent)),
        weights.reading * step.context_s * (num_tokens + 0.5 * num_output) * num_output * num_running,
        weights.eviction * own_s,
        weights.copy * (need.most_held - num_matched) * token_s,
        weights.room * _room_s(need, replica, num_output * next_s),
        weights.lateness * _late_s(need, first_s, next_s) if need.slo is not None else 0.0,
        own_s,
    )


def total_s(
    need: Need, replica: Replica, step: StepModel, queued_s: float, num_matched: int, num_host: int, weights: Weights
) -> float:
    """The sum of what `terms` says, found faster, as every replica is asked for it; `queued_s` is `wait_s` of it."""
    token_s, num_tokens, num_output = step.token_s, need.prompt.num_tokens, need.num_output
    num_new, num_running = num_tokens - num_matched, replica.num_running
    next_s = step.base_s + (num_running + 1) * step.sequence_s + (replica.context_tokens + num_tokens) * step.context_s
    own_s = num_new * (token_s + step.attention_s * (num_tokens - 0.5 * num_new))
    first_s = queued_s + own_s + next_s * (1.0 + num_new // CHUNK_TOKENS) + replica.round_trip_s
    later_s = weights.decode * num_output * next_s + weights.eviction * own_s
    if num_running > 0:
        first_s += 0.5 * next_s
        read_s = step.context_s * (num_tokens + 0.5 * num_output) * num_output
        later_s += (weights.delay * own_s + weights.reading * read_s) * num_running
    if replica.prefilling:
        later_s += weights.before * own_s * (replica.prefilling - replica.silent)
    if num_host:
        first_s += num_host * HOST_SHARE * token_s
    if need.most_held != num_matched:
        later_s += weights.copy * (need.most_held - num_matched) * token_s
    if need.adapter is not None:
        first_s += _adapter_s(need, replica, next_s * num_output, num_running, weights)
    if replica.kv_capacity_tokens is not None:
        later_s += weights.room * _room_s(need, replica, num_output * next_s)
    if need.slo is not None:
        later_s += weights.lateness * _late_s(need, first_s, next_s)
    return first_s + later_s


def _adapter_s(need: Need, replica: Replica, answer_s: float, num_running: int, weights: Weights) -> float:
    """All that run there wait for the load, and each step of an answer is longer for the one adapter more. Where every
    slot is at work, and others wait for one before us, each takes about an answer's time."""
    if need.adapter is None or need.adapter in replica.resident_adapters:
        return 0.0
    slower_s = weights.mixing * answer_s
    num_short = max(0, 1 - replica.num_free_adapter_slots)
    return (replica.adapter_load_s + slower_s) * (1 + num_running) + num_short * answer_s


def _room_s(need: Need, replica: Replica, decode_s: float) -> float:
    """The share of the KV cache that we would fill alone x how long, x how full it is."""
    capacity = replica.kv_capacity_tokens
    if capacity is None:
        return 0.0
    used = (replica.held_tokens + replica.foreign_context_tokens + 0.5 * replica.awaited_tokens) / capacity
    if used < LEAST_USED:
        return 0.0
    used = min(used, MOST_USED)
    unique = need.prompt.num_tokens - replica.shared_tokens(need.prompt) + 0.5 * need.num_output
    scarcity = used / (1.0 - used)
    return unique / capacity * decode_s * scarcity


def _late_s(need: Need, first_s: float, next_s: float) -> float:
    """By how much the first token, and all others together, would come later than the client hopes."""
    assert need.slo is not None  # else nothing is late
    ttft_s, tpot_s = need.slo.ttft_s, need.slo.tpot_s
    late_s = 0.0 if ttft_s is None else max(0.0, first_s - ttft_s)
    return late_s if tpot_s is None else late_s + max(0.0, next_s - tpot_s) * need.num_output
