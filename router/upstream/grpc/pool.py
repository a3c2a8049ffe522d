"""gRPC to replicas: a few connections to each, with many calls at once, answers by callback.

Knows connecting and which connection takes a call; what is asked and told is `planning.py`'s and `exchange.py`'s
matter. A call that a replica cannot have looked at, because it was leaving, is sent once more on a fresh connection.
"""

import asyncio
import ssl
from urllib.parse import urlsplit

from router.core import Attempt
from router.errors import ConnectFailed, UpstreamError
from router.ports import Clock, Sink
from router.upstream.grpc.connection import Http2Connection
from router.upstream.grpc.exchange import GrpcExchange
from router.upstream.grpc.planning import Planner

IDLE_S = 60.0


class GrpcUpstream:
    """`ports.Upstream` over gRPC, plain or TLS. Connections that carry nothing for `idle_s` are closed."""

    def __init__(self, clock: Clock, plans: Planner, *, idle_s: float = IDLE_S) -> None:
        self._clock = clock
        self._plans = plans
        self._idle_s = idle_s
        self._context: ssl.SSLContext | None = None
        self._open: dict[str, list[Http2Connection]] = {}
        self._opening: set[Http2Connection] = set()
        self._resends: set[asyncio.Task[None]] = set()

    def open_now(self, attempt: Attempt, sink: Sink) -> GrpcExchange | None:
        """See `ports.Upstream`. Raises InvalidRequest and UpstreamStatus for what the replica cannot be asked."""
        connection = self._usable(attempt.replica.id)
        plan = None if connection is None else self._plans.now(attempt)
        if connection is None or plan is None:
            return None
        exchange = GrpcExchange(attempt, sink, plan, self._resend_soon)
        exchange.start(connection, self._left_s(attempt), is_reused=True)
        return exchange

    async def open(self, attempt: Attempt, sink: Sink) -> GrpcExchange:
        """See `ports.Upstream`."""
        plan = self._plans.now(attempt) or await self._plans.soon(attempt)
        exchange = GrpcExchange(attempt, sink, plan, self._resend_soon)
        found = self._usable(attempt.replica.id)
        connection = found or await self._connect(attempt)
        exchange.start(connection, self._left_s(attempt), is_reused=found is not None)
        return exchange

    async def close(self) -> None:
        for task in self._resends:
            task.cancel()
        for connection in [*self._opening, *(each for several in self._open.values() for each in several)]:
            connection.abort()
        await asyncio.sleep(0)

    def sweep(self) -> None:
        """Close connections that carried nothing for too long. Called about once a second."""
        now = self._clock()
        for connection in [each for several in self._open.values() for each in several]:
            if connection.streams:
                connection.idle_since = now
            elif not connection.is_usable or now - connection.idle_since > self._idle_s:
                connection.abort()

    @property
    def num_calls(self) -> int:
        """Calls that are open, to all replicas."""
        return sum(len(each.streams) for several in self._open.values() for each in several)

    def _left_s(self, attempt: Attempt) -> float | None:
        return None if attempt.deadline is None else attempt.deadline - self._clock()

    def _usable(self, replica_id: str) -> Http2Connection | None:
        """The first that takes a call: later ones may age and close."""
        for connection in self._open.get(replica_id, ()):
            if connection.is_usable:
                return connection
        return None

    async def _connect(self, attempt: Attempt) -> Http2Connection:
        """A fresh connection whose replica speaks HTTP/2. Raises ConnectFailed."""
        url = urlsplit(attempt.replica.spec.url)
        context = await self._ssl_context() if url.scheme == "grpcs" else None
        connection = Http2Connection(lambda lost: self._forget(attempt.replica.id, lost))
        self._opening.add(connection)
        try:
            async with asyncio.timeout(attempt.connect_timeout_s):
                loop = asyncio.get_running_loop()
                port = url.port or (443 if context else 80)
                await loop.create_connection(lambda: connection, url.hostname or "", port, ssl=context)
                await connection.greeted
        except TimeoutError:
            connection.abort()
            raise ConnectFailed(f"No connection to the replica within {attempt.connect_timeout_s:g} s.") from None
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(f"The replica cannot be reached: {error.strerror or error}.") from error
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            self._opening.discard(connection)
        if not connection.is_usable:
            connection.abort()
            raise ConnectFailed("The replica closed a fresh connection, or speaks no HTTP/2.")
        connection.idle_since = self._clock()
        self._open.setdefault(attempt.replica.id, []).append(connection)
        return connection

    async def _ssl_context(self) -> ssl.SSLContext:
        """Made once, and in a thread: it reads the system's certificates."""
        if self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
            self._context.set_alpn_protocols(["h2"])
        return self._context

    def _resend_soon(self, exchange: GrpcExchange) -> None:
        """Start the exchange again on a fresh connection, in a task of ours."""
        task = asyncio.get_running_loop().create_task(self._resend(exchange))
        self._resends.add(task)
        task.add_done_callback(self._resends.discard)

    async def _resend(self, exchange: GrpcExchange) -> None:
        try:
            connection = await self._connect(exchange.attempt)
        except UpstreamError as error:
            exchange.fail(error)
            return
        exchange.start(connection, self._left_s(exchange.attempt), is_reused=False)

    def _forget(self, replica_id: str, connection: Http2Connection) -> None:
        kept = self._open.get(replica_id, [])
        if connection in kept:
            kept.remove(connection)
        if not kept:
            self._open.pop(replica_id, None)

    def __repr__(self) -> str:
        return f"<GrpcUpstream {sum(map(len, self._open.values()))} open, {self.num_calls} calls>"
