"""Fakes of the upstream room: a sink that notes what it hears, an attempt, a socket in memory."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import h11

from router.core import Attempt, Headers, Replica
from router.errors import UpstreamError
from router.spec import ReplicaSpec


class FakeSink:
    """Hears one answer. `on_each` is called after each thing heard: there a test pauses or aborts."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.length: int | None = None
        self.body = b""
        self.framed: list[bytes | None] = []
        self.heard: list[str] = []
        self.error: UpstreamError | None = None
        self.on_each: Callable[[str], None] = lambda _: None

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self.status, self.headers, self.length = status, dict(headers), length
        self._note("head")

    def on_body(self, payload: bytes, framed: bytes | None) -> None:
        assert payload
        assert framed is None or unchunked(framed) == payload
        self.body += payload
        self.framed.append(framed)
        self._note("body")

    def on_end(self) -> None:
        self._note("end")

    def on_error(self, error: UpstreamError) -> None:
        self.error = error
        self._note("error")

    @property
    def ends(self) -> list[str]:
        return [word for word in self.heard if word in ("end", "error")]

    def _note(self, word: str) -> None:
        assert not self.ends, f"{word} after the end"
        self.heard.append(word)
        self.on_each(word)


def unchunked(framed: bytes) -> bytes:
    """The payload of whole chunks, none of them the last, as h11 reads them."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n")
    assert isinstance(client.next_event(), h11.Response)
    payload = b""
    while isinstance(event := client.next_event(), h11.Data):
        payload += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert client.trailing_data == (b"", False)
    return payload


def make_attempt(spec: ReplicaSpec | None = None, body: bytes = b"{}", headers: Headers = ()) -> Attempt:
    return Attempt(
        Replica(spec or ReplicaSpec("http://a:1")), "req-1", "/v1/completions", headers, body, 3.0, 300.0, 60.0
    )


class FakeSocket(asyncio.Transport):
    """A transport whose reading and end a test can see."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reads = True
        self.end: str | None = None
        self.options: dict[tuple[int, int], int] = {}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options[level, option] = value

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.sent += b"".join(list_of_data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def is_closing(self) -> bool:
        return self.end is not None
