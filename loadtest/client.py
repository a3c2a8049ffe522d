"""The wire: one request out, one frozen Sample back. Knows HTTP; knows nothing of workloads or arrivals."""

import asyncio
import contextlib
import difflib
import os
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import aiohttp
import msgspec

from loadtest.answer import Answer, status_message
from loadtest.errors import LoadError, UsageError
from loadtest.sample import Failure, Fault, Sample
from loadtest.wire import Ask

# Servers close idle connections after 5 s or more; reusing one at that moment would count as their failure.
_KEEPALIVE_S = 4.0
# After the end mark only the end of the body is due; a server that withholds it costs us a connection, not a wait.
_BODY_END_S = 1.0
_PROBE_S = 10.0


@dataclass(eq=False, slots=True)
class Client:
    """A pool of connections to one server."""

    session: aiohttp.ClientSession
    url: str
    timeout_s: float

    def __repr__(self) -> str:
        return f"<Client {self.url} {'CLOSED' if self.session.closed else 'OPEN'}>"

    async def ask(self, ask: Ask) -> tuple[Sample, str]:
        """Send one request and read its answer; failures are in the Sample, never raised."""
        answer = Answer()
        replica: list[str] = []
        sent_s = time.perf_counter()
        ended_s = None
        with self._failing_into(answer):
            async with asyncio.timeout(self.timeout_s), self._post(ask) as response:
                replica.extend(response.headers.getall("x-pointsman-replica", ())[:1])
                ended_s = await _read(response, answer, ask.is_streamed)
        return _sample(answer, sent_s, ended_s or time.perf_counter(), ask, replica), "".join(answer.texts)

    async def ask_and_leave(self, ask: Ask) -> Answer:
        """Send one request and close its connection at the first token; cancelling closes it earlier."""
        answer = Answer()
        with self._failing_into(answer):
            async with asyncio.timeout(self.timeout_s), self._post(ask) as response:
                if response.status != 200:
                    await _read(response, answer, ask.is_streamed)
                async for piece in response.content.iter_any():
                    answer.take(piece, time.perf_counter())
                    if answer.num_chunks or answer.failure or answer.is_done:
                        break
                response.close()
        return answer

    async def models(self) -> list[str] | None:
        """The ids that /v1/models lists; None where the server has no such route.

        Raises LoadError when the server cannot be reached or does not answer as an OpenAI server.
        """
        status, body = await self.get(f"{self.url}/v1/models", "--url")
        if status in (401, 403):
            raise UsageError(f"--api-key: the server at {self.url} answered {status}: {status_message(body)}")
        if status in (404, 405):
            return None
        if status != 200:
            raise LoadError(f"--url: {self.url}/v1/models answered {status}: {status_message(body)}")
        try:
            return [model["id"] for model in msgspec.json.decode(body)["data"]]
        except (msgspec.DecodeError, KeyError, TypeError):
            raise LoadError(f"--url: {self.url}/v1/models is not a list of models: not an OpenAI server?") from None

    async def get(self, url: str, flag: str) -> tuple[int, bytes]:
        """GET a small page; raises LoadError that names `flag` when nothing answers."""
        try:
            async with asyncio.timeout(min(self.timeout_s, _PROBE_S)), self.session.get(url) as response:
                return response.status, await response.read()
        except TimeoutError:
            raise LoadError(f"{flag}: {url} did not answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise LoadError(f"{flag}: cannot reach {url}: {_reason(error)}") from None

    def _post(self, ask: Ask) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {"content-type": "application/json"}
        return self.session.post(self.url + ask.path, data=ask.body, headers=headers)

    @contextlib.contextmanager
    def _failing_into(self, answer: Answer) -> Iterator[None]:
        """Turn what the sockets raise into the answer's failure."""
        try:
            yield
        except TimeoutError:
            answer.failure = Failure(Fault.TIMEOUT, f"no whole answer within {self.timeout_s:g} s")
        except aiohttp.ClientConnectorError as error:
            answer.failure = Failure(Fault.REFUSED, _reason(error))
        except (aiohttp.ClientError, OSError) as error:
            answer.failure = Failure(Fault.CUT, _reason(error))


def choose_model(wanted: str | None, offered: list[str] | None) -> str:
    """The model to ask for: the wanted one, else the first offered; raises UsageError that names --model."""
    if offered is None:
        if wanted is None:
            raise UsageError("--model: the server has no /v1/models to choose from, so name one")
        return wanted
    if wanted is not None and wanted in offered:
        return wanted
    if not offered:
        raise LoadError("--model: the server lists no model yet")
    if wanted is None:
        return offered[0]
    nearest = difflib.get_close_matches(wanted, offered, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(offered)}"
    raise UsageError(f"--model: the server has no model {wanted!r}; {hint}")


@contextlib.asynccontextmanager
async def connect(url: str, api_key: str | None, timeout_s: float) -> AsyncIterator[Client]:
    """Open a Client on `url` (with or without a trailing /v1), with as many connections as the load needs."""
    url = url.rstrip("/").removesuffix("/v1")
    _allow_many_sockets()
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    pool = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
    no_limit = aiohttp.ClientTimeout(total=None, sock_connect=None)
    async with aiohttp.ClientSession(connector=pool, headers=headers, timeout=no_limit) as session:
        yield Client(session, url, timeout_s)


def _reason(error: Exception) -> str:
    """What the sockets mean, in a user's words."""
    match error:
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            return os.strerror(number) if number and number > 0 else str(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return "the connection closed before the answer"
        case aiohttp.ClientPayloadError():
            return "the connection closed within the answer"
    return str(error) or type(error).__name__


async def _read(response: aiohttp.ClientResponse, answer: Answer, is_streamed: bool) -> float:
    """Read the body into `answer`; return when the answer ended."""
    if response.status != 200:
        message = status_message(await response.read())
        answer.failure = Failure(Fault.HTTP_STATUS, message, response.status)
    elif is_streamed:
        return await _read_stream(response, answer)
    else:
        answer.take_whole(await response.read())
        answer.close()
    return time.perf_counter()


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer) -> float:
    now = time.perf_counter()
    async for piece in response.content.iter_any():
        now = time.perf_counter()
        answer.take(piece, now)
        if answer.failure:
            return now
        if answer.is_done:
            break
    answer.close()
    if answer.is_done:
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_BODY_END_S):
                await response.read()
    return now


def _sample(answer: Answer, sent_s: float, ended_s: float, ask: Ask, replica: list[str]) -> Sample:
    usage = answer.usage
    details = usage.prompt_tokens_details if usage else None
    return Sample(
        sent_s=sent_s,
        ended_s=ended_s,
        failure=answer.failure,
        first_token_s=answer.first_token_s,
        gaps_s=tuple(answer.gaps_s),
        num_chunks=answer.num_chunks,
        num_sent_words=ask.num_words,
        num_input_tokens=usage.prompt_tokens if usage else None,
        num_output_tokens=usage.completion_tokens if usage else None,
        num_cached_tokens=details.cached_tokens if details else None,
        replica=replica[0] if replica else None,
    )


def _allow_many_sockets() -> None:
    """Each request in flight is a socket; the usual soft limit of 1,024 would look like a server's refusal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
