"""A request inside the engine: what was asked (Request) and how far it has come (Sequence).

Knows tokens, states and why a sequence ends. Must not know the block pool, tensors, text or HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from engine.sampling import Sampling
from pointsman.blockhash import block_hashes


class SequenceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


# Running goes back to waiting when the sequence is preempted: its blocks are given up, its tokens are kept.
TRANSITIONS: Mapping[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset({SequenceState.RUNNING, SequenceState.FINISHED}),
    SequenceState.RUNNING: frozenset({SequenceState.WAITING, SequenceState.FINISHED}),
    SequenceState.FINISHED: frozenset(),
}


class FinishReason(Enum):
    """The values are those of the wire and of the metric label."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """`priority`: lower is earlier. `arrived_s` is on the engine's clock. KV is shared only under one `salt`."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    arrived_s: float
    priority: int = 0
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave one request. `stop_reason` is the stop string or stop token id that was met."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    num_cached_tokens: int
    num_output_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """A request being served. `tokens` is prompt and output; the KV of the first `num_computed` is in `table`.

    `order` is (priority, arrival number); a preempted sequence keeps it. `table` lists KV blocks in order.
    `num_cached_tokens` is the prefix hit of the first admission, None before it. `num_uncached_tokens` is what a
    waiting sequence would have had to compute when it was queued.
    """

    request: Request
    order: tuple[int, int]
    tokens: list[int] = field(init=False)
    state: SequenceState = SequenceState.WAITING
    table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached_tokens: int | None = None
    num_uncached_tokens: int = 0
    finish_reason: FinishReason | None = None
    last_token_s: float | None = None
    _hashes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    def move(self, state: SequenceState) -> None:
        """Raises RuntimeError on a transition that the table lacks."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.name}")
        self.state = state

    def finish(self, reason: FinishReason) -> None:
        self.move(SequenceState.FINISHED)
        self.finish_reason = reason

    def hashes(self, num_blocks: int, block_size: int) -> list[int]:
        """The chained hashes of the first `num_blocks` blocks, all of which must be full."""
        if len(self._hashes) < num_blocks:
            self._hashes = block_hashes(self.tokens, block_size, salt=self.request.salt)
        return self._hashes[:num_blocks]

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.request.id} {self.state.name} {self.num_computed}/{len(self.tokens)} tokens "
            f"{len(self.table)} blocks>"
        )
