"""Replica bytes to Reply, for one request over all its attempts. Bytes move by callback, never by an await.

Knows phases, timeouts, heartbeats and in-band errors; knows nothing of sockets, of choosing, or of what an answer
says beyond its SSE framing and usage. It is the `Sink` of each attempt and the `Flow` behind the reply.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum

import msgspec

from router import headers, openai
from router.core import Attempt, Demand, Headers, Lease, Outcome, Request, Surface, Usage, Whereabouts
from router.errand import Ending, Errand, own_task
from router.errors import (
    BadAnswer,
    ClientStalled,
    ConnectionCut,
    Displaced,
    Expired,
    KeyRefused,
    PointsmanError,
    UpstreamError,
    UpstreamStatus,
    UpstreamTimeout,
)
from router.ports import Clock, Exchange, Queue, Reply, Upstream
from router.retelling import Retelling

MAX_ERROR_BYTES = 64 * 1024
_USAGE_TAIL_BYTES = 16 * 1024


class Phase(Enum):
    """What the client has seen. SILENT -> (HELD ->) FLOWING -> ENDED, and ENDED from anywhere."""

    SILENT = "nothing"
    HELD = "a head and comments, sent early"
    FLOWING = "content"
    ENDED = "the end"


@dataclass(frozen=True, slots=True)
class RelayTimes:
    """Seconds: an early head after `heartbeat_after_s` of silence, then a comment each `heartbeat_interval_s`."""

    heartbeat_after_s: float = 10.0
    heartbeat_interval_s: float = 15.0


class Incoming(msgspec.Struct, eq=False):
    """One answer of a replica, as far as it came. `status` is 0 until the head."""

    last_byte_at: float
    status: int = 0
    headers: Headers = ()
    length: int | None = None
    events: openai.EventStream | None = None
    error_bytes: bytes = b""
    json_tail: bytes = b""
    is_success: bool = False
    whole_usage: Usage | None = None

    @property
    def usage(self) -> Usage | None:
        if self.events is not None:
            return self.events.usage
        if self.whole_usage is None:
            self.whole_usage = openai.usage_of(self.json_tail) if self.json_tail else None
        return self.whole_usage

    @property
    def num_output_tokens(self) -> int | None:
        """As the replica said; where a stream did not, about an event a token."""
        usage = self.usage
        if usage is not None and usage.output_tokens is not None:
            return usage.output_tokens
        return self.events.num_events if self.events is not None else None

    def status_error(self) -> UpstreamStatus:
        wait = headers.find(self.headers, "retry-after")
        wait_s = float(wait) if wait is not None and wait.isdigit() else None
        body = openai.normalised_error(self.status, self.error_bytes)
        return UpstreamStatus(self.status, body, retry_after_s=wait_s)


_NOTHING = Incoming(0.0)


class Relay:
    """`errand` is the request's, set as soon as there is one: a client that leaves cancels it. `notes` go with a head;
    `queue` can say where `demand` stands while it waits. `retelling` is what of the answer is told otherwise."""

    __slots__ = (
        "_attempt",
        "_clock",
        "_ending",
        "_exchange",
        "_incoming",
        "_last_sent",
        "_paused_at",
        "_reply",
        "_times",
        "demand",
        "errand",
        "first_byte_at",
        "is_client_gone",
        "lease",
        "notes",
        "phase",
        "queue",
        "request",
        "retelling",
        "status",
    )

    def __init__(self, request: Request, reply: Reply, clock: Clock, times: RelayTimes) -> None:
        self.request = request
        self.phase = Phase.SILENT
        self.status = 0
        self.is_client_gone = False
        self.first_byte_at: float | None = None
        self.lease: Lease | None = None
        self.notes: Headers = ()
        self.queue: Queue | None = None
        self.demand: Demand | None = None
        self.retelling: Retelling | None = None
        self._reply = reply
        self._clock = clock
        self._times = times
        self.errand: Errand | None = None
        self._last_sent = request.arrived
        self._paused_at: float | None = None
        self._attempt: Attempt | None = None
        self._exchange: Exchange | None = None
        self._ending: Ending | None = None
        self._incoming = _NOTHING
        reply.bind(self)

    # for the proxy

    async def carry(self, upstream: Upstream, attempt: Attempt, lease: Lease) -> None:
        """One attempt, to the end of its answer. Raises what went wrong; `phase` says whether the client saw any."""
        self._incoming = Incoming(self._clock())
        self.first_byte_at = None  # an attempt before this one may have begun an event and not ended it
        self.lease, self._attempt = lease, attempt
        lease.on_displaced = self._displaced
        self._ending = Ending(asyncio.get_running_loop())
        try:
            self._exchange = upstream.open_now(attempt, self)
            if self._exchange is None:
                await own_task()
                self._exchange = await upstream.open(attempt, self)
            if self._paused_at is not None:
                self._exchange.pause()
            await self._ending
        finally:
            self._detach()
            lease.on_displaced = None  # else what a request has left would wait, in a circle, for the collector

    def fail(self, error: PointsmanError) -> None:
        """End the reply with an error: as a status if no head went out, in-band in a stream, else by cutting it."""
        if self.phase is Phase.ENDED:
            return
        was, self.phase = self.phase, Phase.ENDED
        if was is Phase.SILENT:
            self._fail_with_status(error)
        elif self._can_tell(was, error):
            self._reply.write(openai.sse_error(error))
            self._reply.end(self.outcome_of(error), is_complete=True)
        else:
            self._reply.end(self.outcome_of(error), is_complete=False)

    def _can_tell(self, was: Phase, error: PointsmanError) -> bool:
        is_stream = was is Phase.HELD or self._incoming.events is not None
        return is_stream and not isinstance(error, ClientStalled)

    def outcome_of(self, error: PointsmanError) -> Outcome:
        if isinstance(error, ClientStalled):
            return Outcome.CLIENT_GONE
        if isinstance(error, Expired):
            return Outcome.EXPIRED
        if isinstance(error, UpstreamStatus) and error.status < 500 and not error.is_backpressure:
            return Outcome.REJECTED  # the replica did its part: the request is wrong
        if isinstance(error, UpstreamError):
            return Outcome.CUT_MID_STREAM if self.first_byte_at is not None else Outcome.UPSTREAM_FAILED
        return Outcome.REJECTED

    @property
    def usage(self) -> Usage:
        """What the replica said of this answer's tokens, with our times."""
        found = self._incoming.usage
        arrived = self.request.arrived
        first_s = None if self.first_byte_at is None else self.first_byte_at - arrived
        total_s = self._clock() - arrived
        if found is None:
            return Usage(first_token_s=first_s, total_s=total_s)
        return Usage(found.prompt_tokens, found.cached_tokens, found.output_tokens, first_s, total_s)

    @property
    def num_events(self) -> int:
        """SSE events of this answer so far."""
        events = self._incoming.events
        return 0 if events is None else events.num_events

    def tick(self, now: float) -> None:
        """Look at the clock, a few times a second: deadline, silence of either side, heartbeat."""
        if self.phase is Phase.ENDED:
            return
        if now >= self.request.deadline:
            self._interrupt(Expired("The request's deadline passed before its answer was complete."))
        elif self._paused_at is not None:
            self._check_reader(now, self._paused_at)
        elif self._attempt is not None:
            self._check_replica(now, self._attempt)
        if self.phase in (Phase.SILENT, Phase.HELD) and self.request.is_stream:
            self._heartbeat(now)

    def cancel(self) -> None:
        """End the request where it waits."""
        if self.errand is not None:
            self.errand.cancel()

    # Flow: the way back from the reply

    def pause(self) -> None:
        self._paused_at = self._clock()
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        self._paused_at = None
        if self._exchange is not None:
            self._incoming.last_byte_at = self._clock()
            self._exchange.resume()

    def gone(self) -> None:
        self.is_client_gone = True
        self.phase = Phase.ENDED
        self._detach()
        self.cancel()

    # Sink: what comes from the replica

    def on_head(self, status: int, headers_in: Headers, length: int | None) -> None:
        answer = self._incoming
        answer.last_byte_at = self._clock()
        answer.status, answer.headers, answer.length = status, headers_in, length
        answer.is_success = 200 <= status < 300
        if answer.is_success and headers.is_event_stream(headers_in):
            answer.events = openai.EventStream()
        elif answer.is_success and self.phase is Phase.HELD:
            self._interrupt(BadAnswer("The replica answered a stream request with something else."))

    def on_body(self, payload: bytes, framed: bytes | None) -> None:
        answer = self._incoming
        answer.last_byte_at = now = self._clock()
        if not answer.is_success:
            answer.error_bytes = (answer.error_bytes + payload)[:MAX_ERROR_BYTES]
            return
        is_first = self.first_byte_at is None
        if is_first:
            self.first_byte_at = now
        if answer.events is None:
            answer.json_tail = (answer.json_tail + payload if answer.json_tail else payload)[-_USAGE_TAIL_BYTES:]
            whole = payload if self.retelling is None else self.retelling.piece(payload, is_first=is_first)
        else:
            whole = answer.events.feed(payload)
            if self.retelling is not None:
                whole = self.retelling.events(whole)
        if whole:
            if self.phase is not Phase.FLOWING:
                self._open_reply()
            self._reply.write(whole, framed if whole is payload else None)
        if is_first:
            self._begin_content()

    def on_end(self) -> None:
        answer = self._incoming
        if not answer.is_success:
            self._settle(self._refusal(answer))
        elif answer.events is not None and not answer.events.is_done and isinstance(self.request.surface, Surface):
            self._settle(ConnectionCut("The replica ended its stream without [DONE]."))
        else:
            self._finish()

    def on_error(self, error: UpstreamError) -> None:
        events = self._incoming.events
        if events is not None and events.is_done:
            self._finish()  # the client has had the last word: an error behind it would belie a whole answer
        else:
            self._settle(error)

    # the rest

    def _refusal(self, answer: Incoming) -> UpstreamError:
        """That a replica does not take our own key is nothing that its client can mend."""
        if answer.status == 401 and self._attempt is not None and self._attempt.replica.spec.api_key is not None:
            return KeyRefused("The replica does not take the key that the router has for it.")
        return answer.status_error()

    def _begin_content(self) -> None:
        """Once the first byte is on its way: who waits for a place is let in here, and this client need not wait for
        that. Its reply may have ended the request meanwhile."""
        if self.lease is not None and self.lease.outcome is None:
            self.lease.start()

    def _open_reply(self) -> None:
        """The head, or where that went out early, who answers and why as comments."""
        was, self.phase = self.phase, Phase.FLOWING
        own = self.notes if self.lease is None else headers.own(self.lease) + self.notes
        if was is Phase.SILENT:
            answer = self._incoming
            is_stream = answer.events is not None
            self.status = answer.status
            passed = headers.to_client(answer.headers, is_stream=is_stream)
            self._reply.head(answer.status, passed, own, None if is_stream else answer.length)
        else:
            for name, value in own:
                self._reply.write(openai.sse_comment(f"{name}: {value}"))

    def _finish(self) -> None:
        rest = b"" if self.retelling is None else self.retelling.rest()
        if self.phase is not Phase.FLOWING:
            self._incoming.length = len(rest) if rest else self._incoming.length
            self._open_reply()
        if rest:
            self._reply.write(rest)
        self.phase = Phase.ENDED
        if self.lease is not None:
            self.lease.output_tokens = self._incoming.num_output_tokens
        # First: the reply's end may begin the client's next request, which counts on what this one gives back.
        self._settle(None)
        self._reply.end(Outcome.OK, is_complete=True)

    def _fail_with_status(self, error: PointsmanError) -> None:
        body, fields = openai.error_body(error), headers.JSON
        if (wait := openai.retry_after(error)) is not None:
            fields = (*fields, ("retry-after", wait))
        own = headers.own(self.lease) if self.lease is not None else (("x-request-id", self.request.id),)
        self.status = error.status
        # An error's own words stand for what is noted under the same names.
        notes = self.notes if not error.headers else ()
        self._reply.head(error.status, fields, (*own, *notes, *error.headers), len(body))
        self._reply.write(body)
        self._reply.end(self.outcome_of(error), is_complete=True)

    def _check_reader(self, now: float, paused_at: float) -> None:
        if self._attempt is not None and now - paused_at > self._attempt.idle_timeout_s:
            self._interrupt(ClientStalled("The client stopped reading."))

    def _check_replica(self, now: float, attempt: Attempt) -> None:
        # Counted from the first content byte: some engines send the head at once and the first token much later.
        limit_s = attempt.first_byte_timeout_s if self.first_byte_at is None else attempt.idle_timeout_s
        if now - self._incoming.last_byte_at > limit_s:
            self._interrupt(UpstreamTimeout(f"The replica was silent for {limit_s:g} s."))

    def _heartbeat(self, now: float) -> None:
        is_first, times = self.phase is Phase.SILENT, self._times
        if now - self._last_sent < (times.heartbeat_after_s if is_first else times.heartbeat_interval_s):
            return
        self._last_sent = now
        place = self._whereabouts()
        if is_first:
            self.phase, self.status = Phase.HELD, 200
            own = (("x-request-id", self.request.id), *self.notes, *headers.waiting(place))
            self._reply.head(200, headers.EARLY_STREAM, own)
        how = "" if place is None else "; " + ", ".join(f"{name}: {value}" for name, value in headers.waiting(place))
        self._reply.write(openai.sse_comment("waiting for a replica" + how))

    def _whereabouts(self) -> Whereabouts | None:
        return None if self.queue is None or self.demand is None else self.queue.whereabouts(self.demand)

    def _interrupt(self, error: PointsmanError) -> None:
        """Stop the attempt. In the queue and while connecting other timers rule: nothing to stop here."""
        if self._exchange is not None:
            self._exchange.abort()
            self._settle(error)

    def _displaced(self) -> None:
        """A higher band needs this place; nothing has been answered yet, so that the request can have another."""
        self._interrupt(Displaced("A request of a higher class took this one's place.", retry_after_s=1.0))

    def _settle(self, error: PointsmanError | None) -> None:
        if self._ending is not None:
            self._ending.settle(error)

    def _detach(self) -> None:
        self._attempt = None
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None

    def __repr__(self) -> str:
        where = f" on {self._attempt.replica.id}" if self._attempt is not None else ""
        how = ", its client reads slowly" if self._paused_at is not None else ""
        return f"<Relay {self.request.id} {self.phase.name}{where}{how}>"
