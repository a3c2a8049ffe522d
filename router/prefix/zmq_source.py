"""KV events over ZMQ, as vLLM and SGLang publish them: a stream of numbered batches, and a replay of the last ones.

Knows sockets and numbers; what a batch says is the follower's. A batch that was missed is asked for; what cannot be had
again clears the replica, and a number that goes back means that the engine began anew. A stream that is faster than we
are is cut by ZMQ's high-water mark, and so comes to the same: a gap, and one resync.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from router.prefix.follower import FeedState, Follower
from router.prefix.sequence import Sequence, Step

# Of each turn of the event loop.
SLICE_S = 0.001
MAX_WAITING_BATCHES = 10_000
MAX_BATCH_BYTES = 64 * 2**20
REPLAY_TIMEOUT_S = 5.0
# Between two resyncs, at first and at most; meanwhile what comes is not listened to.
RESYNC_PAUSE_S, MAX_RESYNC_PAUSE_S = 0.5, 30.0
# A resync that held for so long was worth it.
STEADY_S = 60.0
_END = (-1).to_bytes(8, "big", signed=True)

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ZmqSource:
    """`address` is the publisher's, `replay_address` that of its replay socket, None where it has none.

    `follow` runs until it is cancelled, or ends with the Distrust of the follower.
    """

    address: str
    replay_address: str | None
    context: "zmq.asyncio.Context"
    topic: str = ""
    _sequence: Sequence = field(default_factory=Sequence, init=False)
    _again: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _pause_s: float = field(default=RESYNC_PAUSE_S, init=False)
    _resynced_at: float = field(default=0.0, init=False)

    def begin_anew(self) -> None:
        """The replica was lost: what it holds is to be asked for anew."""
        self._again.set()

    async def follow(self, follower: Follower) -> None:
        with self._subscribed() as live:
            await self._resync(follower, "it begins", None)
            while True:
                await self._wait(live)
                if self._again.is_set():
                    self._again.clear()
                    self._sequence = Sequence()
                    await self._resync(follower, "the replica was lost", None)
                await self._take_some(live, follower)

    async def _wait(self, live: "zmq.asyncio.Socket") -> None:
        """Until something comes, or all is to begin anew."""
        coming, again = asyncio.ensure_future(live.poll()), asyncio.ensure_future(self._again.wait())
        try:
            await asyncio.wait((coming, again), return_when=asyncio.FIRST_COMPLETED)
        finally:
            coming.cancel()
            again.cancel()

    async def _take_some(self, live: "zmq.asyncio.Socket", follower: Follower) -> None:
        """All that has come, in slices: asking each time for one more would cost more than what it says."""
        # Not the asyncio one: it would make a future of each batch.
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(live.underlying)
        until = time.perf_counter() + SLICE_S
        while True:
            try:
                parts = plain.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            await self._take(parts, follower)
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_S

    async def _take(self, parts: list[bytes], follower: Follower) -> None:
        if len(parts) < 2 or len(parts[-2]) != 8:
            follower.num_bad += 1  # was it a batch, the next one's number will show that it is missing
            return
        number, payload = int.from_bytes(parts[-2], "big"), parts[-1]
        step = self._sequence.see(number)
        if step is Step.RESTART:
            self._sequence.restart()
            if number:
                await self._resync(follower, "the engine began anew", number)
            else:
                follower.reset("the engine began anew")
                follower.synced(is_whole=True)
        elif step is Step.GAP:
            await self._resync(follower, "batches were lost", number)
        if number == self._sequence.wanted:
            self._sequence.take(number, payload)
            if number == 0:
                follower.synced(is_whole=True)  # whatever could be asked: this is the beginning
            follower.hear(payload)

    async def _resync(self, follower: Follower, reason: str, number: int | None) -> None:
        """Come to know all that is before the batch of this number; None: all that there is."""
        await self._calm_down()
        num_bad = follower.num_bad
        was_whole = self._sequence.last is not None and follower.status.state is FeedState.SYNCED
        if self._sequence.last is None:
            follower.reset(reason)
        replayed = await self._replay(self._sequence.last or 0)
        if self._sequence.last is not None and replayed is not None and not self._continues(replayed):
            self._sequence.restart()
            follower.reset(reason)
            replayed = await self._replay(0)
        if replayed is not None and self._sequence.last is None:
            was_whole = not replayed or replayed[0][0] == 0
        self._take_replayed(replayed or [], follower)
        if number is not None and self._sequence.wanted < number:
            follower.reset(f"{reason}, and they cannot be had again")
            self._sequence.skip_to(number)
            was_whole = False
        if follower.num_bad > num_bad:
            return  # it is late, and has said why
        without = "it has no replay" if self.replay_address is None else "its replay goes not so far back"
        follower.synced(is_whole=was_whole, reason=f"{reason}, and {without}")

    def _continues(self, replayed: list[tuple[int, bytes]]) -> bool:
        """Does it begin with the last batch that we know? Else it is another life, or too much is gone."""
        return bool(replayed) and replayed[0][0] == self._sequence.last and self._sequence.is_last(replayed[0][1])

    def _take_replayed(self, replayed: list[tuple[int, bytes]], follower: Follower) -> None:
        for number, payload in replayed:
            if self._sequence.last is None or number == self._sequence.wanted:
                self._sequence.take(number, payload)
                follower.hear(payload)

    async def _replay(self, start: int) -> list[tuple[int, bytes]] | None:
        """Batches from this number on, as far as the engine still has them; None where it does not answer."""
        if self.replay_address is None:
            return None
        found: list[tuple[int, bytes]] = []
        with closing(self.context.socket(zmq.DEALER)) as asking:
            _set_up(asking)
            asking.connect(self.replay_address)
            try:
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    await asking.send_multipart([b"", start.to_bytes(8, "big")])
                    while True:
                        parts = await asking.recv_multipart()
                        if len(parts) < 2 or parts[-2] == _END or len(parts[-2]) != 8:
                            return found
                        found.append((int.from_bytes(parts[-2], "big"), parts[-1]))
            except TimeoutError:
                log.info("%s gave no whole replay within %g s", self.replay_address, REPLAY_TIMEOUT_S)
                return None

    async def _calm_down(self) -> None:
        """A stream that we cannot follow is not asked for again and again."""
        now = time.monotonic()
        if now - self._resynced_at > STEADY_S:
            self._pause_s = RESYNC_PAUSE_S
        elif self._resynced_at:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, MAX_RESYNC_PAUSE_S)
        self._resynced_at = time.monotonic()

    @contextmanager
    def _subscribed(self) -> "Iterator[zmq.asyncio.Socket]":
        with closing(self.context.socket(zmq.SUB)) as live:
            _set_up(live)
            live.setsockopt(zmq.RCVHWM, MAX_WAITING_BATCHES)
            live.setsockopt_string(zmq.SUBSCRIBE, self.topic)
            live.connect(self.address)
            yield live

    def __repr__(self) -> str:
        return f"<ZmqSource {self.address} {self._sequence!r}>"


def _set_up(socket: "zmq.asyncio.Socket") -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    socket.setsockopt(zmq.IPV6, 1)
