"""An engine's side of KV events over ZMQ, as vLLM has it: numbered batches, the last of them kept for replay. It may
lose a batch on the way, die, and be born again with other blocks."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = b"\xff" * 8


def batch(*events: Any, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([0.0, list(events), rank])


def stored(
    names: Sequence[int | bytes], ids: Sequence[int], parent: int | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(names),
        "parent_block_hash": parent,
        "token_ids": list(ids),
        "block_size": len(ids) // len(names),
        **fields,
    }


def removed(*names: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(names)}


CLEARED = {"type": "AllBlocksCleared"}


@dataclass(eq=False)
class Publisher:
    """`address` and `replay_address` are where it can be heard and asked. `num_kept` batches can be had again."""

    context: "zmq.asyncio.Context"
    num_kept: int = 1000
    has_topic: bool = True
    address: str = ""
    replay_address: str = ""
    num_asked: int = 0
    is_deaf: bool = False
    _number: int = 0
    _kept: "deque[tuple[int, bytes]]" = field(default_factory=deque)
    _live: "zmq.asyncio.Socket | None" = None
    _replay: "zmq.asyncio.Socket | None" = None

    def open(self) -> None:
        self._live = self.context.socket(zmq.XPUB)
        self._replay = self.context.socket(zmq.ROUTER)
        for each, address in ((self._live, self.address), (self._replay, self.replay_address)):
            each.setsockopt(zmq.LINGER, 0)
            each.bind(address or "tcp://127.0.0.1:*")
        self.address = self._live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_address = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        assert self._live is not None
        assert self._replay is not None
        self._live.close()
        self._replay.close()

    async def restart(self) -> None:
        """Another life on the same addresses: numbers begin at 0 again, and nothing is kept."""
        self.close()
        self._number, self._kept = 0, deque()
        await self.reopen()

    async def reopen(self) -> None:
        """ZMQ lets go of an address some moments after its socket was closed."""
        async with asyncio.timeout(10):
            while True:
                try:
                    self.open()
                    return
                except zmq.ZMQError:
                    self.close()
                    await asyncio.sleep(0.01)

    async def has_listener(self) -> None:
        """Wait until somebody has subscribed."""
        assert self._live is not None
        await self._live.recv()

    async def publish(self, *events: Any, payload: bytes | None = None, is_lost: bool = False, times: int = 1) -> None:
        """One batch of these events; `is_lost`: it is kept, and never arrives."""
        assert self._live is not None
        for _ in range(times):
            number, content = self._number, batch(*events) if payload is None else payload
            self._number += 1
            self._kept.append((number, content))
            while len(self._kept) > self.num_kept:
                self._kept.popleft()
            if not is_lost:
                await self._live.send_multipart([b"", number.to_bytes(8, "big"), content])

    async def answer(self) -> None:
        """Replay to whoever asks, until cancelled."""
        while True:
            assert self._replay is not None
            try:
                who, _, start = await self._replay.recv_multipart()
            except (zmq.ZMQError, OSError, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                await asyncio.sleep(0.001)  # its socket was closed: it is born again
                continue
            self.num_asked += 1
            if self.is_deaf:
                continue
            topic = [b""] if self.has_topic else []
            for number, content in list(self._kept):
                if number >= int.from_bytes(start, "big"):
                    await self._replay.send_multipart([who, b"", *topic, number.to_bytes(8, "big"), content])
            await self._replay.send_multipart([who, b"", *topic, END, b""])


@asynccontextmanager
async def publishing(**fields: Any) -> AsyncIterator[Publisher]:
    context = zmq.asyncio.Context()
    publisher = Publisher(context, **fields)
    publisher.open()
    answering = asyncio.create_task(publisher.answer())
    try:
        yield publisher
    finally:
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering
        publisher.close()
        context.destroy(linger=0)
