"""How long a step of a real engine takes, by profile. Knows the formula and its coefficients; knows no scheduler.

    host_load + max(w0 + w1*min(m, 256), c1*m + c0) + q*sum(p_i*(s_i + p_i/2)) + kv*sum(context of decodes) + o0 + o1*n

in milliseconds, over a step of `m` tokens and `n` sequences, of which prefilling ones compute `p_i` tokens behind
`s_i`. Where the numbers come from stands in `traces/engine_profiles.json`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from loadtest.errors import UsageError
from loadtest.flags import nearest

_SHIPPED = Path(__file__).parent.parent / "traces" / "engine_profiles.json"
# From so many tokens on, a step is bound by computing and not by reading the weights.
_MOST_WEIGHT_BOUND_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Profile:
    """Coefficients in milliseconds a token (or as the formula has them), sizes in tokens and sequences.

    `host_load_share`: loading a token from host memory, as a share of computing it (`c1`).
    """

    name: str
    w0: float
    w1: float
    c0: float
    c1: float
    q: float
    kv: float
    o0: float
    o1: float
    kv_capacity_tokens: int
    max_num_batched_tokens: int
    max_num_seqs: int
    host_load_share: float = 0.06
    kv_bytes_per_token: int = 131_072

    def step_s(
        self, prefills: Sequence[tuple[int, int]], num_decodes: int, context: int, num_host_tokens: int = 0
    ) -> float:
        """Seconds of a step. `prefills`: tokens and those before them; `context`: of all decodes together."""
        num_prefill_tokens = sum(tokens for tokens, _ in prefills)
        attention = sum(tokens * (before + tokens / 2) for tokens, before in prefills)
        linear = self._linear_ms(num_prefill_tokens + num_decodes)
        overhead = self.o0 + self.o1 * (len(prefills) + num_decodes)
        host = self.host_load_share * self.c1 * num_host_tokens
        return (host + linear + self.q * attention + self.kv * context + overhead) / 1e3

    def decode_steps_s(self, num_decodes: int, context: int, num_steps: int) -> list[float]:
        """Seconds of each of so many steps that only decode: to the bit those of `step_s`."""
        linear, overhead = self._linear_ms(num_decodes), self.o0 + self.o1 * num_decodes
        last = context + num_steps * num_decodes
        return [(linear + self.kv * tokens + overhead) / 1e3 for tokens in range(context, last, num_decodes)]

    def prefill_s(self, num_tokens: int) -> float:
        """The whole prompt on an idle replica with an empty cache."""
        budget = self.max_num_batched_tokens
        starts = range(0, num_tokens, budget)
        return sum(self.step_s([(min(budget, num_tokens - start), start)], 0, 0) for start in starts)

    def _linear_ms(self, num_tokens: int) -> float:
        weights = self.w0 + self.w1 * min(num_tokens, _MOST_WEIGHT_BOUND_TOKENS)
        return max(weights, self.c1 * num_tokens + self.c0)


@dataclass(frozen=True, slots=True)
class Overheads:
    """What an engine's API server adds, in seconds: before the request is queued, with each token, and at the end."""

    request_s: float
    token_s: float
    finish_s: float


def profile(name: str) -> Profile:
    """Raises UsageError, with the nearest name, where there is none."""
    known = _document()["profiles"]
    if name not in known:
        raise UsageError(
            f"--profile: there is no engine {name!r}{nearest(name, tuple(known))}; known: {', '.join(known)}"
        )
    wanted = {each.name for each in fields(Profile)}
    return Profile(name, **{key: value for key, value in known[name].items() if key in wanted})


def overheads() -> Overheads:
    told = _document()["api_overhead_ms"]
    return Overheads(told["per_request"] / 1e3, told["per_output_token"] / 1e3, told["at_finish"] / 1e3)


def host_tier_tokens() -> int:
    """Tokens that a replica's host tier holds."""
    return int(_document()["host_tier"]["capacity_tokens"])


@cache
def _document() -> Any:
    return json.loads(_SHIPPED.read_text(encoding="utf-8"))
