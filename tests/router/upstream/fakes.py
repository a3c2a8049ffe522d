"""Fakes of the upstream room: a sink that notes what it hears, an attempt, a socket in memory."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from router.core import Attempt, Headers, ReplicaSpec
from router.errors import UpstreamError
from tests.router.nouns import make_replica


class FakeSink:
    """Hears one answer. `on_each` is called after each thing heard: there a test pauses or aborts."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.heard: list[str] = []
        self.error: UpstreamError | None = None
        self.on_each: Callable[[str], None] = lambda _: None

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, dict(headers)
        self._note("head")

    def on_body(self, payload: bytes) -> None:
        assert payload
        self.body += payload
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


def make_attempt(spec: ReplicaSpec | None = None, body: bytes = b"{}", headers: Headers = ()) -> Attempt:
    replica = make_replica("a:1", **({} if spec is None else {"spec": spec}))
    return Attempt(replica, "/v1/completions", headers, body, 3.0, 300.0, 60.0)


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
