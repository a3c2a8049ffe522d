"""What requests measured, one by one. Knows times, counts and kinds of failure; knows nothing of sockets or statistics.

Times are seconds of `time.perf_counter`; only their differences mean anything.
"""

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """Why a request counts as failed; the value is its name in the table and in the JSON."""

    HTTP_STATUS = "HTTP"
    IN_BAND = "in-band error"
    CUT = "cut stream"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    UNREADABLE = "unreadable answer"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request: its kind, the HTTP status where that is the kind, and the server's words."""

    fault: Fault
    message: str
    status: int | None = None

    @property
    def label(self) -> str:
        """Groups failures in the table: `HTTP 429`, `cut stream`."""
        return self.fault.value if self.status is None else f"{self.fault.value} {self.status}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, whole.

    `first_token_s` is the arrival of the first non-empty output, None without one or without streaming;
    `gaps_s` are the raw gaps between non-empty chunks; `ended_s` is the end of the answer. Token counts
    come from the server's usage and are None where it reports none; `num_chunks` counts non-empty chunks
    and `num_sent_words` the words of the prompt.
    """

    sent_s: float
    ended_s: float
    failure: Failure | None
    first_token_s: float | None
    gaps_s: tuple[float, ...]
    num_chunks: int
    num_sent_words: int
    num_input_tokens: int | None
    num_output_tokens: int | None
    num_cached_tokens: int | None
    replica: str | None

    @property
    def e2e_s(self) -> float:
        """From sending to the end of the answer."""
        return self.ended_s - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first non-empty output token."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """(e2e - TTFT) / (output tokens - 1); None for answers of fewer than two tokens."""
        tokens = self.num_chunks if self.num_output_tokens is None else self.num_output_tokens
        if self.ttft_s is None or tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (tokens - 1)

    @property
    def mean_gap_s(self) -> float | None:
        """Mean inter-token gap of this request; None with fewer than two chunks."""
        return sum(self.gaps_s) / len(self.gaps_s) if self.gaps_s else None


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that is over. `lag_s` is the longest time that this process kept a due event waiting."""

    model: str
    samples: tuple[Sample, ...]
    started_s: float
    ended_s: float
    num_unfinished: int
    lag_s: float
    is_interrupted: bool
