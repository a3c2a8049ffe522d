"""What the engine has done so far, as plain numbers.

Written by the thread that steps the engine, read by whoever renders metrics: a torn read costs one sample, no lock.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from engine.sequence import FinishReason, Sequence

# Upper bounds in seconds; those of vLLM, so that dashboards made for it fit.
_FIRST_TOKEN_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_NEXT_TOKEN_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKEN_BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_STEP_BOUNDS = (1.0, *(float(2**power) for power in range(3, 15)))


@dataclass(eq=False, slots=True)
class Histogram:
    """Counts per bucket, not cumulated; the last bucket is beyond all bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0
    _last: float | None = field(default=None, init=False)
    _bucket: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        # What one step observes is mostly the same for all its sequences.
        if value != self._last:
            self._last, self._bucket = value, bisect_left(self.bounds, value)
        self.counts[self._bucket] += times
        self.total += value * times


@dataclass(eq=False, slots=True)
class TransferStats:
    """KV from and for other engines; written on the event loop. Seconds are from asking to the last byte in place, or
    from a question to the last byte sent."""

    num_wanted_tokens: int = 0
    num_fetched_tokens: int = 0
    fetched_bytes: int = 0
    fetched_s: float = 0.0
    sent_bytes: int = 0
    sent_s: float = 0.0
    num_failures: int = 0


def _of_request_s() -> Histogram:
    return Histogram(_REQUEST_BOUNDS_S)


def _of_tokens() -> Histogram:
    return Histogram(_TOKEN_BOUNDS)


@dataclass(eq=False, slots=True)
class RequestStats:
    """Requests that came to their end by themselves. Waiting ends when the first step with the request begins; then
    it is computed: first its prompt, up to its first token, then its answer."""

    total_s: Histogram = field(default_factory=_of_request_s)
    waiting_s: Histogram = field(default_factory=_of_request_s)
    computing_s: Histogram = field(default_factory=_of_request_s)
    prompt_s: Histogram = field(default_factory=_of_request_s)
    answer_s: Histogram = field(default_factory=_of_request_s)
    mean_token_s: Histogram = field(default_factory=lambda: Histogram(_NEXT_TOKEN_BOUNDS_S))
    num_prompt_tokens: Histogram = field(default_factory=_of_tokens)
    num_output_tokens: Histogram = field(default_factory=_of_tokens)
    max_tokens: Histogram = field(default_factory=_of_tokens)

    def observe(self, sequence: Sequence) -> None:
        """It has just got its last token."""
        request, num_output_tokens = sequence.request, sequence.num_output_tokens
        scheduled_s, first_s, last_s = sequence.scheduled_s, sequence.first_token_s, sequence.last_token_s
        if scheduled_s is None or first_s is None or last_s is None:
            return
        self.total_s.observe(last_s - request.arrived_s)
        self.waiting_s.observe(scheduled_s - request.arrived_s)
        self.computing_s.observe(last_s - scheduled_s)
        self.prompt_s.observe(first_s - scheduled_s)
        self.answer_s.observe(last_s - first_s)
        if num_output_tokens > 1:
            self.mean_token_s.observe((last_s - first_s) / (num_output_tokens - 1))
        self.num_prompt_tokens.observe(len(request.prompt))
        self.num_output_tokens.observe(num_output_tokens)
        self.max_tokens.observe(request.sampling.max_tokens)


@dataclass(eq=False, slots=True)
class DraftStats:
    """Guessed tokens. `num_accepted_at` counts by place in the guess, from 0."""

    num_drafts: int = 0
    num_tokens: int = 0
    num_accepted: int = 0
    num_accepted_at: list[int] = field(default_factory=list)

    def observe(self, num_tokens: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_tokens += num_tokens
        self.num_accepted += num_accepted
        self.num_accepted_at += [0] * (num_tokens - len(self.num_accepted_at))
        for place in range(num_accepted):
            self.num_accepted_at[place] += 1


@dataclass(eq=False, slots=True)
class Stats:
    """`load_s` has the seconds of each phase of the start."""

    load_s: dict[str, float] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    finished: Counter[FinishReason] = field(default_factory=Counter)
    transfer: TransferStats = field(default_factory=TransferStats)
    drafts: DraftStats = field(default_factory=DraftStats)
    requests: RequestStats = field(default_factory=RequestStats)
    step_tokens: Histogram = field(default_factory=lambda: Histogram(_STEP_BOUNDS))
    first_token_s: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_BOUNDS_S))
    next_token_s: Histogram = field(default_factory=lambda: Histogram(_NEXT_TOKEN_BOUNDS_S))
