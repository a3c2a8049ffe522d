"""Micro-batching, for replicas that do not batch by themselves: requests of one prompt each that come within a few
milliseconds and are alike otherwise go to their replica as one call. A `ports.Upstream` around another. Knows when a
call is sent and to whom its answer goes; how bodies are joined and split is in `parts.py`.

Each request keeps its own attempt, lease and place: who leaves is left out, and the call goes on while anybody wants
its answer. A call that fails is made again for each alone, so that who is at fault fails alone; but where the replica
is away or has too much to do, more calls would not help, and all are told.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from router.core import Attempt, Headers
from router.errors import BadAnswer, ConnectFailed, UpstreamError
from router.ports import Exchange, Sink, Upstream
from router.spec import Merge
from router.upstream.parts import Part, joined, part_of, split

MAX_ANSWER_BYTES = 64 * 2**20
_CREDENTIALS = ("authorization", "x-api-key", "api-key")
_BACKPRESSURE = (429, 503)

NumTokens = Callable[[Sink], int | None]
OnMerged = Callable[[str, int], None]


@dataclass(eq=False, slots=True)
class MergingUpstream:
    """`num_tokens(sink)`: of the prompt of the request behind it, where they are known exactly. `on_merged` hears which
    replica a call goes to, by id, and for how many requests."""

    inner: Upstream
    num_tokens: NumTokens = lambda _: None
    on_merged: OnMerged = lambda _id, _num_requests: None
    _gathering: dict[tuple[object, ...], "_Call"] = field(default_factory=dict)
    _opening: set[asyncio.Task[None]] = field(default_factory=set)

    def open_now(self, attempt: Attempt, sink: Sink) -> Exchange | None:
        """See `ports.Upstream`."""
        merge = attempt.replica.spec.merge
        part = None if merge is None else part_of(attempt.path, attempt.body)
        if merge is None or part is None:
            return self.inner.open_now(attempt, sink)
        return self._join(attempt, sink, part, merge)

    async def open(self, attempt: Attempt, sink: Sink) -> Exchange:
        """See `ports.Upstream`."""
        return await self.inner.open(attempt, sink)  # what can be merged was taken by `open_now`

    async def close(self) -> None:
        for call in list(self._gathering.values()):
            call.drop()
        for task in self._opening:
            task.cancel()
        await self.inner.close()

    def _join(self, attempt: Attempt, sink: Sink, part: Part, merge: Merge) -> "_Member":
        shown = tuple(pair for pair in attempt.headers if pair[0] in _CREDENTIALS)
        key = (attempt.replica.id, part.path, part.is_tokens, part.others, shown)
        call = self._gathering.get(key)
        if call is None:
            call = self._gathering[key] = _Call(self, key, merge.wait_s)
        member = _Member(attempt, sink, part, call)
        call.members.append(member)
        if len(call.members) >= merge.most:
            call.send()
        return member

    def gathered(self, key: tuple[object, ...]) -> None:
        """Nobody joins this call any more."""
        self._gathering.pop(key, None)

    def begin(self, attempt: Attempt, sink: Sink) -> "_Leg":
        """An attempt at the replica itself; what cannot be sent is told to the sink."""
        exchange = self.inner.open_now(attempt, sink)
        leg = _Leg(exchange)
        if exchange is None:
            leg.opening = task = asyncio.get_running_loop().create_task(self._open(leg, attempt, sink))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        return leg

    async def _open(self, leg: "_Leg", attempt: Attempt, sink: Sink) -> None:
        try:
            leg.took(await self.inner.open(attempt, sink))
        except UpstreamError as error:
            sink.on_error(error)

    def __repr__(self) -> str:
        return f"<MergingUpstream {len(self._gathering)} calls gather>"


@dataclass(eq=False, slots=True)
class _Leg:
    """One attempt of ours on its way, from connecting on."""

    exchange: Exchange | None
    opening: asyncio.Task[None] | None = None
    is_paused: bool = False

    def took(self, exchange: Exchange) -> None:
        self.exchange = exchange
        if self.is_paused:
            exchange.pause()

    def pause(self) -> None:
        self.is_paused = True
        if self.exchange is not None:
            self.exchange.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self.exchange is not None:
            self.exchange.resume()

    def abort(self) -> None:
        if self.opening is not None:
            self.opening.cancel()
        if self.exchange is not None:
            self.exchange.abort()


class _Member:
    """`ports.Exchange` of one request: in its call, or on a leg of its own. `sink` is None once it wants no more."""

    __slots__ = ("attempt", "call", "is_paused", "leg", "part", "sink")

    def __init__(self, attempt: Attempt, sink: Sink, part: Part, call: "_Call") -> None:
        self.attempt = attempt
        self.part = part
        self.sink: Sink | None = sink
        self.call = call
        self.leg: _Leg | None = None
        self.is_paused = False

    def begin_alone(self, upstream: MergingUpstream) -> None:
        if self.sink is not None:
            self.leg = upstream.begin(self.attempt, self.sink)
            if self.is_paused:
                self.leg.pause()

    def pause(self) -> None:
        """Of a call's answer nothing comes before all of it is here: there only what may come later is paused."""
        self.is_paused = True
        if self.leg is not None:
            self.leg.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self.leg is not None:
            self.leg.resume()

    def abort(self) -> None:
        self.sink = None
        if self.leg is not None:
            self.leg.abort()
        else:
            self.call.left()

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_head(status, headers, len(body))
            sink.on_body(body, None)
            sink.on_end()

    def fail(self, error: UpstreamError) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_error(error)


class _Call:
    """Gathers members, then is the `Sink` of one call for all that are still there."""

    def __init__(self, upstream: MergingUpstream, key: tuple[object, ...], wait_s: float) -> None:
        self._upstream = upstream
        self._key = key
        self.members: list[_Member] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(wait_s, self.send)
        self._leg: _Leg | None = None
        self._num_tokens: list[int | None] = []
        self._status = 0
        self._headers: Headers = ()
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def send(self) -> None:
        """Now; one that is here alone goes as it came."""
        self._gathered()
        if len(self.members) == 1:
            self._each_alone()
        elif self.members:
            first = self.members[0].attempt
            body = joined([member.part for member in self.members])
            self._num_tokens = [self._upstream.num_tokens(each.sink) for each in self.members if each.sink is not None]
            self._upstream.on_merged(first.replica.id, len(self.members))
            self._leg = self._upstream.begin(msgspec.structs.replace(first, body=body), self)

    def left(self) -> None:
        """One of the members wants no more: its place is free, and a call that nobody wants is none."""
        if self._timer is not None:
            self.members = self._present
        if not self._present:
            self.drop()

    def drop(self) -> None:
        self._gathered()
        if self._leg is not None:
            self._leg.abort()

    # Sink

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self._status, self._headers = status, headers

    def on_body(self, payload: bytes, framed: bytes | None) -> None:
        self._pieces.append(payload)
        self._num_bytes += len(payload)
        if self._num_bytes > MAX_ANSWER_BYTES and self._leg is not None:
            self._leg.abort()
            self._each_alone()

    def on_end(self) -> None:
        body = b"".join(self._pieces)
        if self._status in _BACKPRESSURE:
            self._tell([body] * len(self.members))
        elif not 200 <= self._status < 300:
            self._each_alone()
        else:
            self._tell_split(body)

    def on_error(self, error: UpstreamError) -> None:
        if not isinstance(error, ConnectFailed):
            self._each_alone()
            return
        for member in self.members:
            self._loop.call_soon(member.fail, error)

    # the rest

    @property
    def _present(self) -> list[_Member]:
        return [member for member in self.members if member.sink is not None]

    def _gathered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._upstream.gathered(self._key)

    def _tell_split(self, body: bytes) -> None:
        try:
            bodies = split([member.part for member in self.members], self._num_tokens, body)
        except BadAnswer:
            self._each_alone()  # it cannot answer several prompts as it should
        else:
            self._tell(bodies)

    def _tell(self, bodies: Sequence[bytes]) -> None:
        """Each in a turn of its own: what it sets off is no other's matter."""
        for member, body in zip(self.members, bodies, strict=True):
            self._loop.call_soon(member.answer, self._status, self._headers, body)

    def _each_alone(self) -> None:
        for member in self._present:
            self._loop.call_soon(member.begin_alone, self._upstream)

    def __repr__(self) -> str:
        state = "gathers" if self._timer is not None else "is sent"
        return f"<_Call of {len(self._present)} {state}>"
