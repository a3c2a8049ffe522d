"""One answer by two replicas: the first computes the prompt, the second fetches its KV and answers. `ports.Upstream`
and `ports.Exchange` around others'. Knows the order of the two and what to do when one fails; what is in the bodies is
`handshakes.py`'s, whose places they take is the plan's.

    InTurn     ASKING the first -> its answer -> the second ANSWERS; where the first fails, the second does it alone
    Together   both at once; where the first fails before the second has answered, both end
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from router import openai
from router.core import Attempt, Headers
from router.errors import BadAnswer, HandoverFailed, UpstreamError, UpstreamStatus
from router.ports import Exchange, HandoverPlan, Sink, Upstream
from router.upstream.handshakes import second_body

MAX_FIRST_BYTES = 16 * 2**20
MAX_ERROR_BYTES = 64 * 1024


@dataclass(eq=False, slots=True)
class HandoverUpstream:
    """`plan_of(attempt, sink)`: of the request behind it, None where one replica does both."""

    inner: Upstream
    plan_of: Callable[[Attempt, Sink], HandoverPlan | None]
    _connecting: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)

    def open_now(self, attempt: Attempt, sink: Sink) -> Exchange | None:
        plan = self.plan_of(attempt, sink)
        return self.inner.open_now(attempt, sink) if plan is None else self._begin(plan, sink)

    async def open(self, attempt: Attempt, sink: Sink) -> Exchange:
        plan = self.plan_of(attempt, sink)
        return await self.inner.open(attempt, sink) if plan is None else self._begin(plan, sink)

    async def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        await self.inner.close()

    def leg(self, attempt: Attempt, sink: Sink) -> Exchange:
        """One of the two, on its way at once; where it must connect first, in a task of ours."""
        exchange = self.inner.open_now(attempt, sink)
        if exchange is not None:
            return exchange
        leg = _Leg(sink)
        leg.connecting = asyncio.get_running_loop().create_task(self._connect(attempt, leg))
        self._connecting.add(leg.connecting)
        leg.connecting.add_done_callback(self._connecting.discard)
        return leg

    def _begin(self, plan: HandoverPlan, sink: Sink) -> Exchange:
        exchange = (Together if plan.is_together else InTurn)(self, plan, sink)
        exchange.begin()
        return exchange

    async def _connect(self, attempt: Attempt, leg: "_Leg") -> None:
        try:
            leg.follow(await self.inner.open(attempt, leg))
        except UpstreamError as error:
            leg.on_error(error)

    def __repr__(self) -> str:
        return f"<HandoverUpstream round {self.inner!r}, {len(self._connecting)} connecting>"


class _Leg:
    """An exchange that may not have begun, and the sink in front of the real one: after `abort` that hears nothing."""

    __slots__ = ("_exchange", "_is_paused", "_sink", "connecting")

    def __init__(self, sink: Sink) -> None:
        self.connecting: asyncio.Task[None] | None = None
        self._sink: Sink | None = sink
        self._exchange: Exchange | None = None
        self._is_paused = False

    def follow(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._sink is None:
            exchange.abort()
        elif self._is_paused:
            exchange.pause()

    def pause(self) -> None:
        self._is_paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._exchange is not None:
            self._exchange.resume()

    def abort(self) -> None:
        self._sink = None
        if self.connecting is not None:
            self.connecting.cancel()
        if self._exchange is not None:
            self._exchange.abort()

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        if self._sink is not None:
            self._sink.on_head(status, headers, length)

    def on_body(self, payload: bytes, framed: bytes | None) -> None:
        if self._sink is not None:
            self._sink.on_body(payload, framed)

    def on_end(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_end()

    def on_error(self, error: UpstreamError) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_error(error)


class _First:
    """The sink of the first answer, which no client sees: gathered, and told as a whole."""

    __slots__ = ("_body", "_on_answer", "_on_failure", "_status")

    def __init__(self, on_answer: Callable[[bytes], None], on_failure: Callable[[UpstreamError], None]) -> None:
        self._on_answer, self._on_failure = on_answer, on_failure
        self._status = 0
        self._body = bytearray()

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self._status = status

    def on_body(self, payload: bytes, framed: bytes | None) -> None:
        most = MAX_FIRST_BYTES if self._status < 300 else MAX_ERROR_BYTES
        self._body += payload[: max(0, most - len(self._body))]

    def on_end(self) -> None:
        if 200 <= self._status < 300:
            self._on_answer(bytes(self._body))
        else:
            self._on_failure(UpstreamStatus(self._status, openai.normalised_error(self._status, bytes(self._body))))

    def on_error(self, error: UpstreamError) -> None:
        self._on_failure(error)


class InTurn:
    """`ports.Exchange`, vLLM's way."""

    __slots__ = ("_first", "_is_paused", "_plan", "_second", "_sink", "_upstream")

    def __init__(self, upstream: HandoverUpstream, plan: HandoverPlan, sink: Sink) -> None:
        self._upstream, self._plan = upstream, plan
        self._sink: Sink | None = sink
        self._first: Exchange | None = None
        self._second: Exchange | None = None
        self._is_paused = False

    def begin(self) -> None:
        self._first = self._upstream.leg(self._plan.first, _First(self._answered, self._failed))

    def pause(self) -> None:
        """The first one's answer is small: a slow reader is no reason to hold it up."""
        self._is_paused = True
        if self._second is not None:
            self._second.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._second is not None:
            self._second.resume()

    def abort(self) -> None:
        self._sink = None
        for leg in (self._first, self._second):
            if leg is not None:
                leg.abort()

    def _answered(self, answer: bytes) -> None:
        if self._sink is None:
            return
        try:
            body = second_body(self._plan.second.body, answer)
        except ValueError as error:
            self._failed(BadAnswer(f"{self._plan.first.replica.id} has computed the prompt, but {error}."))
            return
        self._plan.begun(openai.usage_of(answer))
        self._ask_second(body, self._sink)

    def _failed(self, error: UpstreamError) -> None:
        if self._sink is None:
            return
        if self._plan.failed(error):
            self._ask_second(self._plan.second.body, self._sink)
        else:
            self._sink.on_error(_passed_on(error))

    def _ask_second(self, body: bytes, sink: Sink) -> None:
        self._second = self._upstream.leg(msgspec.structs.replace(self._plan.second, body=body), sink)
        if self._is_paused:
            self._second.pause()


class Together:
    """`ports.Exchange`, SGLang's way."""

    __slots__ = ("_first", "_plan", "_second", "_sink", "_upstream")

    def __init__(self, upstream: HandoverUpstream, plan: HandoverPlan, sink: Sink) -> None:
        self._upstream, self._plan = upstream, plan
        self._sink: Sink | None = sink
        self._first: Exchange | None = None
        self._second: Exchange | None = None

    def begin(self) -> None:
        self._first = self._upstream.leg(self._plan.first, _First(self._answered, self._failed))
        if self._sink is not None:
            self._second = self._upstream.leg(self._plan.second, self._sink)

    def pause(self) -> None:
        if self._second is not None:
            self._second.pause()

    def resume(self) -> None:
        if self._second is not None:
            self._second.resume()

    def abort(self) -> None:
        self._sink = None
        for leg in (self._first, self._second):
            if leg is not None:
                leg.abort()

    def _answered(self, answer: bytes) -> None:
        self._plan.begun(openai.usage_of(answer))

    def _failed(self, error: UpstreamError) -> None:
        """What the second one has begun to answer it has the KV for."""
        self._plan.failed(error)
        sink = self._sink
        if sink is not None and not self._plan.has_answered():
            self.abort()
            sink.on_error(_passed_on(error))


def _passed_on(error: UpstreamError) -> UpstreamError:
    """The second replica is not to blame; where the request itself is wrong, the first one's words stand."""
    if isinstance(error, UpstreamStatus) and not error.retryable:
        return error
    return HandoverFailed(f"The prompt could not be computed for another replica: {error.message}")
