"""A client of OpenAI's Files and Batch APIs, as `pointsman batch` needs it. Knows their routes and shapes; knows no
terminal and nothing of the router's inside."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
import msgspec

PIECE_BYTES = 256 * 1024
OVER = frozenset(("completed", "failed", "expired", "cancelled"))
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=60.0)


class BatchFailed(Exception):
    """One sentence for the user."""


class RouterAway(BatchFailed):
    """It may be back soon."""


class _Line(msgspec.Struct):
    url: str


class _Counts(msgspec.Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchSeen(msgspec.Struct, frozen=True):
    """A batch as the router tells it."""

    id: str
    status: str
    endpoint: str
    input_file_id: str
    created_at: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: _Counts = _Counts()
    errors: dict[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def num_ended(self) -> int:
        return self.request_counts.completed + self.request_counts.failed

    @property
    def faults(self) -> list[str]:
        """What was wrong with its file, a line each."""
        told = (self.errors or {}).get("data") or []
        return [f"line {each.get('line')}: {each.get('message')}" for each in told]


@dataclass(frozen=True, slots=True)
class BatchClient:
    """Raises BatchFailed for what the router refuses, RouterAway where it cannot be reached."""

    url: str
    session: aiohttp.ClientSession

    async def upload(self, path: Path, on_bytes: Callable[[int], None]) -> str:
        """The file's id; `on_bytes` is told how many have been read so far."""
        with await asyncio.to_thread(path.open, "rb") as file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", _pieces(file, on_bytes), filename=path.name, content_type="application/jsonl")
            return str((await self._ask("POST", "/v1/files", data=form))["id"])

    async def create(self, file_id: str, endpoint: str) -> BatchSeen:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        return _batch(await self._ask("POST", "/v1/batches", json=body))

    async def get(self, id: str) -> BatchSeen:
        return _batch(await self._ask("GET", f"/v1/batches/{id}"))

    async def cancel(self, id: str) -> BatchSeen:
        return _batch(await self._ask("POST", f"/v1/batches/{id}/cancel"))

    async def latest(self, most: int) -> list[BatchSeen]:
        """The latest first."""
        return [_batch(each) for each in (await self._ask("GET", f"/v1/batches?limit={most}"))["data"]]

    async def file_name(self, id: str) -> str | None:
        """As it was uploaded; None where the file is gone."""
        try:
            return str((await self._ask("GET", f"/v1/files/{id}"))["filename"])
        except RouterAway:
            raise
        except BatchFailed:
            return None

    async def download(self, id: str, path: Path) -> None:
        """The file is there once it is whole."""
        part = path.with_name(path.name + ".part")
        try:
            async with self.session.get(f"{self.url}/v1/files/{id}/content") as response:
                if response.status != 200:
                    raise BatchFailed(_message(await response.read()))
                with await asyncio.to_thread(part.open, "wb") as file:
                    async for piece in response.content.iter_chunked(PIECE_BYTES):
                        await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(part.replace, path)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RouterAway(f"the download broke off: {error}") from None
        finally:
            part.unlink(missing_ok=True)

    async def _ask(self, method: str, path: str, **body: Any) -> Mapping[str, Any]:
        try:
            async with self.session.request(method, self.url + path, **body) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RouterAway(f"no router answers at {self.url}: {error}") from None
        if response.status in (502, 503, 504):
            raise RouterAway(_message(answer))
        if response.status != 200:
            raise BatchFailed(_message(answer))
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BatchFailed(f"{self.url} answers, but not as a router") from None


def open_session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers)


def look_into(path: Path) -> tuple[int, str]:
    """Size of a file of requests in bytes, and their endpoint: that of its first line. Raises BatchFailed."""
    try:
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
        size = path.stat().st_size
    except OSError as error:
        raise BatchFailed(f"{path} cannot be read: {error.strerror}") from None
    try:
        return size, msgspec.json.decode(first, type=_Line).url
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BatchFailed(f"{path} is no file of requests: its first line must be a JSON object with `url`") from None


async def _pieces(file: BinaryIO, on_bytes: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Of an open file: whoever refuses the upload stops this anywhere."""
    num_bytes = 0
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        num_bytes += len(piece)
        on_bytes(num_bytes)
        yield piece


def _batch(told: Mapping[str, Any]) -> BatchSeen:
    try:
        return msgspec.convert(told, BatchSeen)
    except msgspec.ValidationError as error:
        raise BatchFailed(f"the router told of a batch in a way that is not understood: {error}") from None


def _message(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer.decode("utf-8", "replace").strip()[:500] or "the router refused it without a word"
