"""The doors between rooms, as Protocols of at most four methods. Knows core types only; implements nothing.

Rooms never import rooms: they meet here, and `app.py` hands each what it needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from router.choice import View, Weighed
from router.core import (
    Attempt,
    Candidate,
    Decision,
    Demand,
    Headers,
    Lease,
    Outcome,
    Pool,
    Prompt,
    Request,
    Usage,
    Whereabouts,
)
from router.errors import UpstreamError
from router.spec import ReplicaSpec


class Clock(Protocol):
    def __call__(self) -> float:
        """Seconds of one monotonic clock."""


class Flow(Protocol):
    """The way back from a Reply: its client reads slowly, reads again, or has gone."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def gone(self) -> None:
        """The client left. The upstream is detached before this returns."""


class Reply(Protocol):
    """Where an answer goes. All calls are synchronous; payloads carry no transport framing.

    `head` at most once and before `write`; `end` exactly once, after which nothing follows. Where `is_complete` is
    false the body is short, and a transport that can show it (by closing early) must.
    """

    def bind(self, flow: Flow) -> None: ...

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        """`headers` are common to many answers, `own` are this one's; `length` of the body in bytes, where known."""

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        """`framed`: the same payload as it came, in whole HTTP/1.1 chunks."""

    def end(self, outcome: Outcome, *, is_complete: bool) -> None: ...


class Talk(Protocol):
    """What is said on one WebSocket."""

    def received(self, text: str) -> None: ...

    def pause(self) -> None:
        """The client reads slowly."""

    def resume(self) -> None: ...

    def lost(self) -> None:
        """The client has gone. All that it asked for is let go of before this returns."""


class Teller(Protocol):
    """Says a chat answer in another API's form, as bytes for its client. Chunks are `transports.chunks.Chunk`."""

    def event(self, chunk: Any) -> bytes:
        """What a chunk of a stream becomes; maybe nothing."""

    def ending(self, failure: Any | None) -> bytes:
        """What ends the stream, well or with a `chunks.Failure`."""

    def whole(self, chunk: Any) -> bytes:
        """The body of an answer that is no stream."""

    def refusal(self, status: int, failure: Any) -> bytes:
        """The body of an answer that is an error."""


class Sink(Protocol):
    """Receives one answer of a replica, by callback: a head, body bytes without framing, then one of end or error."""

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        """`length` of the body in bytes, where the head says it; `headers` are without it."""

    def on_body(self, payload: bytes, framed: bytes | None) -> None:
        """`framed`: the same payload as it came, in whole HTTP/1.1 chunks."""

    def on_end(self) -> None: ...

    def on_error(self, error: UpstreamError) -> None: ...


class Exchange(Protocol):
    """An attempt on its way. After `abort` the sink hears nothing more."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...


class Upstream(Protocol):
    """How we talk to replicas."""

    def open_now(self, attempt: Attempt, sink: Sink) -> Exchange | None:
        """Send on a connection that is there; None where there is none."""

    async def open(self, attempt: Attempt, sink: Sink) -> Exchange:
        """Connect if need be, and send; the answer comes to the sink. Raises UpstreamError if it could not be sent."""

    async def close(self) -> None: ...


class HandoverPlan(Protocol):
    """One request on two replicas, as its exchange sees it: what is sent to the one that computes the prompt, and to
    the one that answers, there less what the first says; both at once, or one after the other."""

    first: Attempt
    second: Attempt
    is_together: bool

    def begun(self, usage: Usage | None) -> None:
        """The first has done its part."""

    def failed(self, error: UpstreamError) -> bool:
        """The first has not. May the second do both?"""

    def has_answered(self) -> bool:
        """Did the second begin to answer?"""


class PromptReader(Protocol):
    """Turns a request's input into block hashes under its pool's tokenizer."""

    async def read(self, request: Request, pool: Pool, adapter: str | None) -> Prompt:
        """At once, but where there is much new text: that is read off the event loop.

        Raises InvalidRequest where the input is none.
        """


class Decoder(Protocol):
    """Token ids to text as they come. Text is given out in whole characters; special tokens have none."""

    def push(self, ids: Sequence[int]) -> str: ...

    def flush(self) -> str:
        """What the last tokens left unfinished."""


class TokenIds(Protocol):
    """Prompts as token ids, and back, for replicas that are spoken to in tokens. `content` is a text or messages;
    `options` are a template's other variables, or `add_special_tokens`."""

    def now(self, pool: Pool, content: object, options: Mapping[str, object]) -> Sequence[int] | None:
        """None where no tokenizer is here yet. Raises InvalidRequest where there are none."""

    async def soon(self, pool: Pool, content: object, options: Mapping[str, object]) -> Sequence[int] | None:
        """As `now`, but for long texts: waits for a tokenizer that is being loaded, and for a thread."""

    def decoder(self, pool: Pool) -> Decoder | None:
        """None where no tokenizer is here."""


class PrefixIndex(Protocol):
    """Which replica holds which KV blocks. Only contiguous prefixes count."""

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, int]:
        """Leading blocks held, by replica id, those who hold most first; replicas that hold none are absent."""

    def insert(self, replica_id: str, block_hashes: Sequence[int]) -> None: ...

    def remove(self, replica_id: str) -> None:
        """Forget all that this replica held."""

    def num_blocks(self, replica_id: str) -> int: ...


class Queue(Protocol):
    """Whether and when a demand gets a place."""

    async def place(self, demand: Demand) -> Lease:
        """A place at once where one is free and nobody waits who comes first, else wait for one.

        Raises Overloaded, NoReplica or Expired. Cancelled while waiting, it leaves at once.
        """

    def pump(self) -> None:
        """Something changed (a release, a replica ready): place those who wait, in order."""

    def whereabouts(self, demand: Demand) -> Whereabouts | None:
        """Of this very demand; None where it does not wait."""


class Placer(Protocol):
    """Chooses and reserves in one synchronous step."""

    def place(self, demand: Demand) -> Lease | None:
        """None while no replica can take it now."""

    def has_ready(self, demand: Demand) -> bool:
        """Is there a ready replica, full or not, that has not failed this demand?"""


class BookStore(Protocol):
    """Where the book of keys is kept, for all processes that go by it."""

    async def load(self, known: str) -> tuple[str, bytes] | None:
        """Version and document, an empty one where there is none yet; None where the version is still `known`."""

    async def save(self, document: bytes, known: str) -> str | None:
        """The new version; None, and nothing is changed, where the version is not `known` any more."""


class Discovery(Protocol):
    async def list(self) -> Sequence[ReplicaSpec]:
        """The full list as it stands now; what is missing from it is gone."""


class Filter(Protocol):
    """Gets all candidates at once and returns those that may serve the demand, in their order."""

    def keep(self, demand: Demand, candidates: Sequence[Candidate]) -> Sequence[Candidate]: ...


class Scorer(Protocol):
    """Scores all candidates at once: in seconds (a cost, lower is better) or in 0..1 (a blend, higher is better)."""

    def score(self, demand: Demand, candidates: Sequence[Candidate]) -> list[float]: ...


class Picker(Protocol):
    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        """Index of the chosen candidate; `costs` are lower-is-better. `candidates` is never empty."""


@runtime_checkable
class Bookkeeper(Protocol):
    """A part of a policy that goes by what was chosen before."""

    def placed(self, lease: Lease) -> None:
        """A decision of its policy has become a lease; `lease.when_released` tells of the end."""


class Policy(Protocol):
    def about(self) -> Mapping[str, object]:
        """Its name, and what it is made of or goes by, as JSON has it."""

    def explain(self, demand: Demand, view: View) -> Sequence[Weighed]:
        """Every replica of the view, and what speaks for and against it. Changes nothing."""

    def placed(self, lease: Lease) -> None:
        """Its decision has become this lease."""

    def decide(self, demand: Demand, view: View) -> Decision | None:
        """None while none of the replicas should take it."""
