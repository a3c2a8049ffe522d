"""One request of a simulated run: what is asked, and what its client saw. Knows nothing of routers or replicas."""

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.simulator.text import Text
from router.core import Prompt

# The service-level objective, the same for every policy: see `scenarios/README.md`.
SLO_TTFT_S = 2.0
SLO_PREFILL_RATIO = 1.5
SLO_PREFILL_GRACE_S = 0.5
SLO_TPOT_S = 0.1


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request brings. `prompt` is what a router reads of `text`; the output's length is the engine's only.

    `idle_prefill_s`: the whole prompt's, on an idle replica without a cache.
    """

    number: int
    text: Text
    prompt: Prompt
    num_output_tokens: int
    answer_token: int
    idle_prefill_s: float
    adapter: str | None = None
    tenant: str | None = None
    session: str | None = None

    @property
    def ttft_limit_s(self) -> float:
        return max(SLO_TTFT_S, SLO_PREFILL_RATIO * self.idle_prefill_s + SLO_PREFILL_GRACE_S)


@dataclass(eq=False, slots=True)
class Job:
    """`is_counted` is False for those of the warm-up. Times are None until they come; `placed_s`: the router gave it a
    place. `is_refused` ends it as well. `on_answer` is called at the end: a user goes on."""

    ask: Ask
    arrived_s: float
    is_counted: bool
    placed_s: float | None = None
    replica_id: str | None = None
    num_matched_tokens: int = 0
    num_cached_tokens: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    is_refused: bool = False
    on_answer: Callable[[], None] | None = None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between tokens; 0 for a single one, None before the end."""
        if self.first_token_s is None or self.ended_s is None:
            return None
        return (self.ended_s - self.first_token_s) / max(1, self.ask.num_output_tokens - 1)

    @property
    def meets_slo(self) -> bool:
        ttft_s, tpot_s = self.ttft_s, self.tpot_s
        return ttft_s is not None and ttft_s <= self.ask.ttft_limit_s and tpot_s is not None and tpot_s <= SLO_TPOT_S

    def __repr__(self) -> str:
        state = "refused" if self.is_refused else "ended" if self.ended_s is not None else "open"
        return f"<Job {self.ask.number} {state}>"
