"""`ports.Reply` for transports that must await to send: a bounded box between callbacks and one coroutine that empties
it. Knows payloads and the way back; knows nothing of what they say or of how they are sent."""

import asyncio
from collections.abc import Callable

from router.core import Headers, Outcome
from router.ports import Flow

# The replica is paused at this much unsent, and goes on once all of it has been taken.
MAX_UNSENT_BYTES = 64 * 1024


class Outbox:
    """One answer. `status` is 0 until the head; `outcome` is None until the end, `is_complete` with it.

    One coroutine calls `opened` and `read`. `leave` says that the client has gone, or is not read for any more.
    """

    __slots__ = (
        "_flow",
        "_is_paused",
        "_news",
        "_num_bytes",
        "_payloads",
        "headers",
        "is_complete",
        "outcome",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.outcome: Outcome | None = None
        self.is_complete = False
        self._payloads: list[bytes] = []
        self._num_bytes = 0
        self._is_paused = False
        self._flow: Flow | None = None
        self._news = asyncio.Event()

    # ports.Reply

    def bind(self, flow: Flow) -> None:
        self._flow = flow

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        self.status, self.headers = status, (*headers, *own)
        self._news.set()

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        if not payload or self.outcome is not None:
            return
        self._payloads.append(payload)
        self._num_bytes += len(payload)
        self._news.set()
        if self._num_bytes > MAX_UNSENT_BYTES and not self._is_paused and self._flow is not None:
            self._is_paused = True
            self._flow.pause()

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        self.outcome, self.is_complete = outcome, is_complete
        self._flow = None
        self._news.set()

    # for the coroutine that sends

    @property
    def num_unsent(self) -> int:
        """Bytes in the box."""
        return self._num_bytes

    async def opened(self) -> int:
        """The status, once there is one; 0 where the answer ended without a head."""
        await self._until(lambda: bool(self.status))
        return self.status

    async def read(self) -> bytes | None:
        """All payload that is there, once there is some; None at the end."""
        await self._until(lambda: bool(self._payloads))
        payload = b"".join(self._payloads)
        self._payloads.clear()
        self._num_bytes = 0
        if self._is_paused:
            self._is_paused = False
            if self._flow is not None:
                self._flow.resume()
        return payload or None

    def let_end(self) -> None:
        """It has had its last word: what is still to come ends by itself, and nobody waits for it."""
        flow, self._flow = self._flow, None
        self._payloads.clear()
        self._num_bytes = 0
        self.outcome, self.is_complete = Outcome.OK, True
        if self._is_paused and flow is not None:
            self._is_paused = False
            flow.resume()

    def leave(self) -> None:
        """Nobody wants the rest: the upstream is detached before this returns. Later calls do nothing."""
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.gone()
        if self.outcome is None:
            self.end(Outcome.CLIENT_GONE, is_complete=False)

    async def _until(self, is_there: Callable[[], bool]) -> None:
        while not is_there() and self.outcome is None:
            self._news.clear()
            await self._news.wait()

    def __repr__(self) -> str:
        state = "open" if self.outcome is None else self.outcome
        return f"<Outbox {self.status} {self._num_bytes} bytes {state}>"
