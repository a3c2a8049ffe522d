"""KV events over ZMQ, framed as vLLM frames them: [topic, sequence, payload], and a second socket to ask again.

Knows ZMQ, msgpack and vLLM's names. Must not know the pool, the engine's loop or HTTP: it is handed changes.

One thread owns both sockets. Whoever steps the engine only appends to a queue: a reader that is slow, or gone, costs
the engine nothing. What the queue has no room for is lost, and a gap in the sequence says so.
"""

import logging
import socket
import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Annotated, Any, Literal

import msgspec
import zmq
from msgspec import Meta, Struct

from engine.prefixes import Change, Medium, Prefix, Removed, Stored

log = logging.getLogger(__name__)

_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
# An address that is ours to take, not somebody else's to call.
_BOUND = ("*", "::", "ipc://", "inproc://")

_Size = Annotated[int, Meta(ge=1)]


class EventsError(ValueError):
    """The events cannot be published as configured; the message names the field."""


class KvEventsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `--kv-events-config`. `buffer_steps` batches can be asked for again; `max_queue_size` wait to be sent."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: _Size = 10_000
    hwm: Annotated[int, Meta(ge=0)] = 100_000
    max_queue_size: _Size = 100_000
    topic: str = ""

    @classmethod
    def parse(cls, text: str) -> "KvEventsConfig":
        """Raises EventsError."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise EventsError(f"--kv-events-config: {error}") from None

    @property
    def is_on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher == "zmq"


@dataclass(eq=False, slots=True)
class KvEventPublisher:
    """Open it, give it each step's changes, close it. `rank` is vLLM's number of a data-parallel rank: each has the
    next port of both addresses."""

    config: KvEventsConfig
    block_size: int
    rank: int = 0
    _waiting: "deque[tuple[int, float, List[Change]]]" = field(default_factory=deque)
    _next_sequence: int = 0
    _sent: "deque[tuple[int, bytes]]" = field(init=False)
    _sockets: "_Sockets" = field(init=False)
    _thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self._sent = deque(maxlen=self.config.buffer_steps)

    def open(self) -> None:
        """Raises EventsError if an address cannot be used."""
        self._sockets = _Sockets.open(self.config, self.rank)
        self._thread = Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, changes: List[Change]) -> None:
        """One batch. Never blocks; call it from one thread."""
        sequence = self._next_sequence
        self._next_sequence += 1
        if len(self._waiting) < self.config.max_queue_size:
            self._waiting.append((sequence, time.time(), changes))
            self._sockets.wake()

    def close(self) -> None:
        """Sends what waits, then lets the sockets go."""
        self._sockets.stop()
        self._thread.join()

    def _run(self) -> None:
        sockets = self._sockets
        with sockets:
            is_open = True
            while is_open:
                is_asked, is_open = sockets.wait()
                # Before an answer: what is sent by now belongs to it.
                self._send_waiting()
                if is_asked:
                    self._replay()

    def _send_waiting(self) -> None:
        topic = self.config.topic.encode()
        while self._waiting:
            number, now_s, changes = self._waiting.popleft()
            payload = encode(changes, now_s, self.rank, self.block_size)
            self._sent.append((number, payload))
            self._sockets.publisher.send_multipart((topic, number.to_bytes(8, "big"), payload))

    def _replay(self) -> None:
        router = self._sockets.replay
        assert router is not None
        frames = router.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning(
                "a request for KV events again has %d frames, not [empty, sequence of 8 bytes]", len(frames) - 1
            )
            return
        client, first = frames[0], int.from_bytes(frames[2], "big")
        for number, payload in self._sent:
            if number >= first:
                router.send_multipart((client, b"", number.to_bytes(8, "big"), payload))
        router.send_multipart((client, b"", _END_OF_REPLAY, b""))

    def __repr__(self) -> str:
        return f"<KvEventPublisher {self.config.endpoint} {self._next_sequence} batches {len(self._waiting)} waiting>"


def encode(changes: List[Change], now_s: float, rank: int, block_size: int) -> bytes:
    """The msgpack payload of one batch, with maps at each level as vLLM has had since June 2026."""
    events = [_event(change, block_size) for change in changes]
    return msgspec.msgpack.encode({"ts": now_s, "events": events, "data_parallel_rank": rank})


def _event(change: Change, block_size: int) -> dict[str, Any]:
    if isinstance(change, Stored):
        return _stored(change.prefixes, change.medium, block_size)
    if isinstance(change, Removed):
        return {"type": "BlockRemoved", "block_hashes": change.hashes, "medium": change.medium.value}
    return {"type": "AllBlocksCleared"}


def _stored(prefixes: List[Prefix], medium: Medium, block_size: int) -> dict[str, Any]:
    parent = prefixes[0].parent
    extra_keys = [_extra_keys(prefix) for prefix in prefixes]
    return {
        "type": "BlockStored",
        "block_hashes": [prefix.hash for prefix in prefixes],
        "parent_block_hash": parent.hash if parent else None,
        "token_ids": [token for prefix in prefixes for token in prefix.tokens],
        "block_size": block_size,
        "lora_id": None,
        "medium": medium.value,
        "lora_name": prefixes[0].scope.adapter,
        "extra_keys": extra_keys if any(extra_keys) else None,
    }


def _extra_keys(prefix: Prefix) -> tuple[str, ...] | None:
    """In vLLM's order: the adapter's name, then the salt with a prompt's first block only."""
    return tuple(_keys(prefix)) or None


def _keys(prefix: Prefix) -> Iterator[str]:
    if prefix.scope.adapter is not None:
        yield prefix.scope.adapter
    if prefix.scope.salt is not None and prefix.parent is None:
        yield prefix.scope.salt


@dataclass(eq=False, slots=True)
class _Sockets:
    """Both ZMQ sockets, and a pair that wakes who waits on them."""

    context: "zmq.Context[zmq.Socket[bytes]]"
    publisher: "zmq.Socket[bytes]"
    replay: "zmq.Socket[bytes] | None"
    waker: socket.socket
    woken: socket.socket
    _poller: zmq.Poller

    @classmethod
    def open(cls, config: KvEventsConfig, rank: int) -> "_Sockets":
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            publisher = context.socket(zmq.PUB)
            publisher.sndhwm = config.hwm
            _attach(publisher, "endpoint", _of_rank(config.endpoint, rank))
            replay = context.socket(zmq.ROUTER) if config.replay_endpoint else None
            if replay is not None and config.replay_endpoint:
                # All that can be asked for may wait for a slow asker.
                replay.sndhwm = 0
                _attach(replay, "replay_endpoint", _of_rank(config.replay_endpoint, rank), must_bind=True)
        except BaseException:
            context.destroy(linger=0)
            raise
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        poller = zmq.Poller()
        for each in (woken, replay):
            if each is not None:
                poller.register(each, zmq.POLLIN)
        return cls(context, publisher, replay, waker, woken, poller)

    def wake(self) -> None:
        # When so many wakes are under way that there is no room, one more adds nothing.
        with suppress(BlockingIOError):
            self.waker.send(b"w")

    def stop(self) -> None:
        self.waker.shutdown(socket.SHUT_WR)

    def wait(self) -> tuple[bool, bool]:
        """Until there is something to do: whether somebody asks for a replay, and whether to go on afterwards."""
        ready = dict(self._poller.poll())
        is_open = self.woken.fileno() not in ready or self.woken.recv(4096) != b""
        return self.replay in ready, is_open

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        self.context.destroy(linger=100)
        self.waker.close()
        self.woken.close()


def _attach(zmq_socket: "zmq.Socket[bytes]", field_name: str, address: str, *, must_bind: bool = False) -> None:
    try:
        if must_bind or any(mark in address for mark in _BOUND):
            zmq_socket.bind(address)
        else:
            zmq_socket.connect(address)
    except zmq.ZMQError as error:
        raise EventsError(f"--kv-events-config: {field_name} {address} cannot be used: {error}") from None


def _of_rank(address: str, rank: int) -> str:
    """The address with the port that belongs to the rank."""
    before, colon, port = address.rpartition(":")
    return f"{before}{colon}{int(port) + rank}" if address.startswith("tcp://") and port.isdecimal() else address
