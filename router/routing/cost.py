"""What it costs everybody, in seconds, to place a request on a replica. Knows the replica's counts and learned speeds,
and the request's tokens; knows no other replica and chooses nothing.

    wait        prefill queued there at its speed, less what is done of it; half a step where something decodes
    prefill     our uncached tokens, attention to the cached ones included, and the steps that they take; host memory's
                tokens at a share of it
    adapter     loading ours, where it is not resident
    round_trip  to its region and back
    decode      a share of our own decoding: slow steps there are ours as well
    delay       a share of what our prefill delays each running decode
    reading     a share of what the reading of our KV adds to the steps of each running decode
    eviction    computing anew what our new blocks evict, as far as it is likely to be asked for again
    lateness    what an SLO of the request would be missed by, weighed heavily

The first four are our own first token; the others are weighed by `Weights`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from router.core import Replica, StepModel

# Prompt tokens that an engine computes in one step.
CHUNK_TOKENS = 8192
# Fetching a token's KV from host memory instead of computing it.
HOST_SHARE = 0.06


@dataclass(frozen=True, slots=True)
class Weights:
    """How much a second of others, or later, counts against one of our first token."""

    decode: float = 0.1
    delay: float = 0.05
    reading: float = 0.05
    eviction: float = 0.0
    lateness: float = 10.0
    room: float = 1.0
    power: float = 4.0
    full: float = 1.0


class Need(msgspec.Struct, frozen=True, gc=False):
    """What of a request its cost depends on. Output is what is expected; SLOs in seconds, None where none is set."""

    now: float
    num_tokens: int
    num_output: float
    adapter: str | None = None
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None


TERMS = ("wait", "prefill", "adapter", "round_trip", "decode", "delay", "reading", "eviction", "lateness")


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
    lateness: float
    own_prefill_s: float

    @property
    def by_name(self) -> Mapping[str, float]:
        return {name: getattr(self, name) for name in TERMS}

    @property
    def total(self) -> float:
        return (
            self.wait
            + self.prefill
            + self.adapter
            + self.round_trip
            + self.decode
            + self.delay
            + self.reading
            + self.eviction
            + self.lateness
        )


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


def terms(
    need: Need, replica: Replica, step: StepModel, num_matched: int, num_host: int, num_shared: int, weights: Weights
) -> Terms:
    """`num_matched` tokens of the prompt are cached there, `num_host` of them in host memory only; `step` is the
    replica's, or what it is taken for."""
    num_tokens, num_output = need.num_tokens, need.num_output
    num_new = num_tokens - num_matched
    num_running = replica.num_running
    step_s = step.decode_s(num_running, replica.context_tokens) if num_running > 0 else 0.0
    wait = wait_s(replica, need.now) + 0.5 * step_s
    own_s = step.prefill_s(num_new, num_tokens)
    prefill = own_s + (step_s or step.base_s) * (1.0 + num_new // CHUNK_TOKENS) + num_host * HOST_SHARE * step.token_s
    adapter = 0.0
    if need.adapter is not None and need.adapter not in replica.resident_adapters:
        adapter = replica.adapter_load_s
    next_s = step.decode_s(num_running + 1, replica.context_tokens + num_tokens)
    room = 0.0
    capacity = replica.kv_capacity_tokens
    if capacity is not None:
        held = replica.held_tokens + 0.5 * replica.awaited_tokens
        unique = num_tokens - num_shared + 0.5 * num_output
        used = held / capacity
        decode_s = num_output * next_s
        room = weights.room * unique / capacity * decode_s * used**weights.power
        excess = held + unique - capacity
        if excess > 0.0 and num_running:
            wait += weights.full * excess / capacity * decode_s
    late_s = 0.0
    if need.ttft_slo_s is not None:
        late_s += max(0.0, wait + prefill + adapter + replica.round_trip_s - need.ttft_slo_s)
    if need.tpot_slo_s is not None:
        late_s += max(0.0, next_s - need.tpot_slo_s) * num_output
    return Terms(
        wait=wait,
        prefill=prefill,
        adapter=adapter,
        round_trip=replica.round_trip_s,
        decode=weights.decode * num_output * next_s,
        delay=weights.delay * own_s * num_running,
        reading=weights.reading * step.context_s * (num_tokens + 0.5 * num_output) * num_output * num_running,
        eviction=weights.eviction * own_s + room,
        lateness=weights.lateness * late_s,
        own_prefill_s=own_s,
    )
