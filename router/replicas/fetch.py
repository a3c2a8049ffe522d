"""One small question to a replica. Knows HTTP GET, its limits and our errors; knows nothing of what answers mean."""

import errno
from dataclasses import dataclass

import aiohttp

from router.core import ReplicaSpec
from router.errors import BadAnswer, ConnectFailed, ConnectionCut, UpstreamTimeout

MAX_BODY_BYTES = 64 * 1024 * 1024  # the largest tokenizers in use are some 35 MB


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class ConnectRefused(ConnectFailed):
    """Nothing listens there: the process is gone, no second opinion needed."""


def open_session() -> aiohttp.ClientSession:
    """A session for all replicas. Unlimited: replicas that hang must not use up the connections of the others.

    Idle connections are dropped before uvicorn's 5 s would.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def fetch(session: aiohttp.ClientSession, spec: ReplicaSpec, path: str, timeout_s: float) -> Answer:
    """GET `path` of a replica, whatever the status. Raises an UpstreamError when there is no whole answer in time."""
    where = f"{spec.id}{path}"
    headers = {"accept-encoding": "identity"}
    if spec.api_key is not None:
        headers["authorization"] = f"Bearer {spec.api_key}"
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(spec.url + path, headers=headers, timeout=timeout, allow_redirects=False) as response:
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


async def _read(response: aiohttp.ClientResponse, where: str) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BadAnswer(f"{where} answered with more than {MAX_BODY_BYTES} bytes")
    return bytes(body)
