"""One small question, or order, to a replica. Knows HTTP, its limits and our errors; knows nothing of what answers
mean."""

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from router.errors import BadAnswer, ConnectFailed, ConnectionCut, UpstreamError, UpstreamTimeout
from router.spec import ReplicaSpec

if TYPE_CHECKING:
    from router.replicas.by_grpc import GrpcReplica

MAX_BODY_BYTES = 64 * 1024 * 1024  # the largest tokenizers in use are some 35 MB


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class ConnectRefused(ConnectFailed):
    """Nothing listens there: the process is gone, no second opinion needed."""


class Connections(aiohttp.TCPConnector):
    """HTTP's pool and, beside it, a channel to each replica behind gRPC that was asked."""

    def __init__(self, *, limit: int, keepalive_timeout: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout)
        self._by_grpc: dict[ReplicaSpec, GrpcReplica] = {}

    def grpc(self, spec: ReplicaSpec) -> "GrpcReplica":
        from router.replicas.by_grpc import GrpcReplica  # 40 MB, for those who have such replicas

        found = self._by_grpc.get(spec)
        if found is None:
            found = self._by_grpc[spec] = GrpcReplica.at(spec)
        return found

    def drop(self, spec: ReplicaSpec) -> None:
        """What is there now may be another than before. The channel closes with the last that is asked over it: to
        close it would cancel who asks."""
        self._by_grpc.pop(spec, None)

    async def close(self, *, abort_ssl: bool = False) -> None:
        for replica in self._by_grpc.values():
            await replica.channel.close()
        self._by_grpc.clear()
        await super().close(abort_ssl=abort_ssl)


def open_session() -> aiohttp.ClientSession:
    """A session for all replicas. Unlimited: replicas that hang must not use up the connections of the others.

    Idle connections are dropped before uvicorn's 5 s would.
    """
    connector = Connections(limit=0, keepalive_timeout=4.0)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def fetch(
    session: aiohttp.ClientSession, spec: ReplicaSpec, path: str, timeout_s: float, order: bytes | None = None
) -> Answer:
    """GET `path` of a replica, or POST it this JSON, whatever the status.

    Raises an UpstreamError when there is no whole answer in time.
    """
    if spec.url.startswith("grpc") and isinstance(session.connector, Connections):
        return await _fetch_by_grpc(session.connector, spec, path, timeout_s, order)
    where, method = f"{spec.id}{path}", "GET" if order is None else "POST"
    headers = {"accept-encoding": "identity"}
    if order is not None:
        headers["content-type"] = "application/json"
    if spec.api_key is not None:
        headers["authorization"] = f"Bearer {spec.api_key}"
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    options: dict[str, Any] = {"headers": headers, "timeout": timeout, "allow_redirects": False}
    try:
        async with session.request(method, spec.url + path, data=order, **options) as response:
            return Answer(response.status, await _read(response, where))
    except TimeoutError as error:
        raise UpstreamTimeout(f"{where} gave no answer within {timeout_s:g} s") from error
    except aiohttp.ClientConnectorError as error:
        if error.os_error.errno == errno.ECONNREFUSED:
            raise ConnectRefused(f"{where} refused the connection") from error
        raise ConnectFailed(f"{where} cannot be reached: {error.os_error}") from error
    except (aiohttp.ClientConnectionError, OSError) as error:
        raise ConnectionCut(f"{where} cut the connection: {error!r}") from error
    except aiohttp.ClientError as error:
        raise BadAnswer(f"{where} gave a broken answer: {error!r}") from error


async def _fetch_by_grpc(
    connections: Connections, spec: ReplicaSpec, path: str, timeout_s: float, order: bytes | None
) -> Answer:
    try:
        return await connections.grpc(spec).ask(path, timeout_s, order)
    except UpstreamError:
        connections.drop(spec)
        raise


async def _read(response: aiohttp.ClientResponse, where: str) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BadAnswer(f"{where} answered with more than {MAX_BODY_BYTES} bytes")
    return bytes(body)
