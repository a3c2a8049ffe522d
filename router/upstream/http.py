"""HTTP/1.1 to replicas: pooled connections, one exchange at a time on each, answers by callback.

Knows connecting and reuse; framing is in `connection.py`. Knows nothing of requests, routing or what a body means.
Decide in synchronous code; only a new connection is awaited. A pooled connection may have been closed by the replica
at the very moment it is reused: an exchange that loses a *reused* connection before any byte came is sent once more
on a fresh one.
"""

import asyncio
import ssl
from collections import deque
from urllib.parse import urlsplit

from router.core import Attempt
from router.errors import ConnectFailed
from router.heads import KnownHeads, learn_answer
from router.ports import Clock, Sink
from router.upstream.connection import Connection
from router.upstream.exchange import HttpExchange

# Engines behind uvicorn close idle connections after 5 s, and do not say so: we let go first.
IDLE_S = 3.9


class HttpUpstream:
    """`ports.Upstream` over HTTP/1.1, plain or TLS. `max_idle` bounds the pooled connections of one replica."""

    def __init__(self, clock: Clock, *, idle_s: float = IDLE_S, max_idle: int = 256) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._max_idle = max_idle
        self._known = KnownHeads(learn_answer)
        self._context: ssl.SSLContext | None = None
        self._idle: dict[str, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._resends: set[asyncio.Task[None]] = set()

    def open_now(self, attempt: Attempt, sink: Sink) -> HttpExchange | None:
        """See `ports.Upstream`."""
        pooled = self._reuse(attempt.replica.id)
        if pooled is None:
            return None
        exchange = HttpExchange(attempt, sink, self._resend_soon)
        exchange.start(pooled, is_reused=True)
        return exchange

    async def open(self, attempt: Attempt, sink: Sink) -> HttpExchange:
        """Send the attempt on a pooled or new connection. Raises ConnectFailed."""
        exchange = self.open_now(attempt, sink)
        if exchange is None:
            exchange = HttpExchange(attempt, sink, self._resend_soon)
            exchange.start(await self._connect(attempt), is_reused=False)
        return exchange

    async def close(self) -> None:
        for task in self._resends:
            task.cancel()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)

    def sweep(self) -> None:
        """Close connections that idled for too long. Called about once a second."""
        now = self._clock()
        for idle in self._idle.values():
            while idle and idle[0].idle_until < now:
                idle.popleft().abort()

    async def _connect(self, attempt: Attempt) -> Connection:
        """A fresh connection to the attempt's replica. Raises ConnectFailed."""
        url = urlsplit(attempt.replica.spec.url)
        loop = asyncio.get_running_loop()
        context = await self._ssl_context() if url.scheme == "https" else None
        port = url.port or (443 if context else 80)
        try:
            async with asyncio.timeout(attempt.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(attempt.replica.id, self._known, self._keep, self._forget),
                    url.hostname or "",
                    port,
                    ssl=context,
                )
        except TimeoutError:
            raise ConnectFailed(f"No connection to the replica within {attempt.connect_timeout_s:g} s.") from None
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(f"The replica cannot be reached: {error.strerror or error}.") from error
        self._open.add(connection)
        return connection

    async def _ssl_context(self) -> ssl.SSLContext:
        """Made once, and in a thread: it reads the system's certificates."""
        if self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
        return self._context

    def _resend_soon(self, exchange: HttpExchange) -> None:
        """Start the exchange again on a fresh connection, in a task of ours."""
        task = asyncio.get_running_loop().create_task(self._resend(exchange))
        self._resends.add(task)
        task.add_done_callback(self._resends.discard)

    async def _resend(self, exchange: HttpExchange) -> None:
        try:
            connection = await self._connect(exchange.attempt)
        except ConnectFailed as error:
            exchange.fail(error)
            return
        exchange.start(connection, is_reused=False)

    def _reuse(self, replica_id: str) -> Connection | None:
        """The connection that was used last: the others may age and close."""
        idle = self._idle.get(replica_id)
        while idle:
            connection = idle.pop()
            if connection.is_usable and self._clock() < connection.idle_until:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: Connection) -> None:
        idle = self._idle.setdefault(connection.replica_id, deque())
        if len(idle) >= self._max_idle:
            idle.popleft().abort()
        connection.idle_until = self._clock() + (self._idle_s if connection.idle_s is None else connection.idle_s)
        idle.append(connection)

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.replica_id)
        if idle and connection in idle:
            idle.remove(connection)

    def __repr__(self) -> str:
        return f"<HttpUpstream {len(self._open)} open, {sum(map(len, self._idle.values()))} idle>"
