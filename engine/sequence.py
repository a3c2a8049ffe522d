"""A request inside the engine: what was asked (Request) and how far it has come (Sequence).

Knows tokens, states and why a sequence ends. Must not know the block pool, tensors, text or HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from engine.adapters import Adapter
from engine.prefixes import NO_SCOPE, Prefix, Scope
from engine.sampling import Pooling, Sampling, TokenLogprobs
from pointsman.blockhash import block_hashes

if TYPE_CHECKING:
    from engine.drafts import PromptLookup
    from engine.seen import SeenTokens
    from engine.structure import Structure


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
    """With `pooling`, no token is wanted, but a vector of the prompt. `priority`: lower is earlier. `arrived_s` is on
    the engine's clock. KV is shared only under one `salt` and one `adapter`, the name of a loaded one."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    arrived_s: float
    priority: int = 0
    salt: str | None = None
    adapter: str | None = None
    pooling: Pooling | None = None


class Output(Struct, frozen=True, gc=False):
    """What one step gave one request. `stop_reason` is the stop string or stop token id that was met. `logprobs` has
    an entry for each token, if they were asked for; `prompt_logprobs` comes once, with the first token, and has one
    for each token of the prompt but the first. `vector` is what pooling gave, an array [hidden] of float32.
    `faulty_field` of the request is to blame for the error, None where the engine is."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    num_cached_tokens: int
    num_output_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    faulty_field: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    vector: Any = None


@dataclass(eq=False, slots=True)
class Sequence:
    """A request being served. `tokens` is prompt and output; the KV of the first `num_computed` is in `table`.

    `order` is (priority, arrival number); a preempted sequence keeps it. `table` lists KV blocks in order.
    `num_cached_tokens` is the prefix hit of the first admission, None before it. `num_uncached_tokens` is what a
    waiting sequence would have had to compute when it was queued. `seen` belongs to penalties; `structure` is what
    the output must keep to; `vector` is what has been pooled so far. `num_overtaken` counts those that ran before it
    because it lacked an adapter's slot; `matched` is what of it was last found in the cache.
    """

    request: Request
    order: tuple[int, int]
    adapter: Adapter | None = None
    scope: Scope = field(init=False)
    tokens: list[int] = field(init=False)
    state: SequenceState = SequenceState.WAITING
    table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached_tokens: int | None = None
    num_uncached_tokens: int = 0
    num_overtaken: int = 0
    matched: list[Prefix] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    last_token_s: float | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    seen: "SeenTokens | None" = None
    structure: "Structure | None" = None
    lookup: "PromptLookup | None" = None
    vector: Any = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    _hashes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.scope = scope_of(self.request.salt, self.adapter)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def is_plain(self) -> bool:
        """The likeliest token is wanted, and nothing else."""
        return self.request.sampling.is_plain and self.structure is None

    @property
    def is_telling_prompt(self) -> bool:
        """The logprobs of the prompt are still to be told."""
        return self.request.sampling.wants_prompt_logprobs and self.num_output_tokens == 0

    @property
    def needs_all_states(self) -> bool:
        """What is wanted is made of every token of the prompt, so that none may be taken from a cache."""
        return self.is_telling_prompt or self.request.pooling is Pooling.MEAN

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
        known = self._hashes
        if len(known) < num_blocks:
            new = self.tokens[len(known) * block_size : num_blocks * block_size]
            parent = known[-1] if known else None
            known += block_hashes(new, block_size, adapter=self.scope.adapter, salt=self.scope.salt, parent=parent)
        return known[:num_blocks]

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.request.id} {self.state.name} {self.num_computed}/{len(self.tokens)} tokens "
            f"{len(self.table)} blocks>"
        )


def scope_of(salt: str | None, adapter: Adapter | None) -> Scope:
    """Whom a request shares KV with."""
    if adapter is not None:
        return Scope(adapter.name, salt, adapter.load)
    return NO_SCOPE if salt is None else Scope(salt=salt)
