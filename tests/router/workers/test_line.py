import asyncio
import random
import socket

import pytest

from router.core import Load, ReplicaState
from router.replicas.identify import Card, Identity
from router.replicas.sighting import Sighting
from router.spec import ReplicaSpec
from router.workers import frames
from router.workers.frames import Cooled, Delta, Dispatches, Document, Drain, Hello, Message, Relist, Snapshot, Suspect
from router.workers.line import FrameReader, Line
from tests.router.replicas.fakes import Wakes

SIGHTING = Sighting(
    spec=ReplicaSpec("http://a:1", api_key="k", tokenizer="/t"),
    column=3,
    state=ReplicaState.READY,
    is_settled=True,
    lost_at=1.5,
    cooling_until=float("-inf"),
    identity=Identity((Card("m"), Card("sql", parent="m")), block_size=32),
    load=Load(at=2.0, running=1, waiting=2, kv_used_ratio=0.5, queued_tokens=7),
    foreign_requests=2,
    foreign_tokens=9,
)
FROM_FEED: list[Message] = [
    Snapshot(1, [SIGHTING], [Document("m", {"tokenizer": "{}", "block_size": 32})]),
    Delta(2, [SIGHTING], ["b:1"], []),
    Dispatches([("a:1", bytes(range(16))), ("b:1", b"")]),
]
TO_FEED: list[Message] = [
    Hello(4),
    Suspect("a:1"),
    Cooled("a:1", 12.5),
    Relist("a:1"),
    Dispatches([("a:1", b"12345678")]),
]


def test_frames_split_at_every_byte_are_the_same_messages() -> None:
    stream = b"".join(map(frames.pack, FROM_FEED))
    for at in range(len(stream) + 1):
        reader = FrameReader()
        payloads = reader.feed(stream[:at]) + reader.feed(stream[at:])
        assert list(map(frames.from_feed.decode, payloads)) == FROM_FEED


def test_frames_in_random_pieces_are_the_same_messages() -> None:
    dice = random.Random(3)
    stream = b"".join(map(frames.pack, TO_FEED)) * 50
    reader, payloads, at = FrameReader(), [], 0
    while at < len(stream):
        size = dice.choice([1, 2, 3, 5, 40, 500])
        payloads += reader.feed(stream[at : at + size])
        at += size
    assert list(map(frames.to_feed.decode, payloads)) == TO_FEED * 50


def test_a_length_that_no_frame_has_is_refused() -> None:
    with pytest.raises(ValueError, match="a frame of 4294967295 bytes"):
        FrameReader().feed(b"\xff\xff\xff\xff")


class End(Wakes):
    """One end of a line, and what it heard."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Message] = []
        self.is_lost = False
        self.line = Line(self._hear, self._lose)

    async def open(self, sock: socket.socket) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self.line, sock=sock)

    def _hear(self, _: Line, payload: bytes) -> None:
        self.heard.append(frames.order.decode(payload))
        self.wake()

    def _lose(self, _: Line) -> None:
        self.is_lost = True
        self.wake()


async def test_what_one_end_sends_the_other_hears_until_one_goes() -> None:
    one, other = End(), End()
    for end, sock in zip((one, other), socket.socketpair(), strict=True):
        await end.open(sock)
    assert one.line.peer_is_us()
    one.line.send(Drain("a:1", True))
    one.line.close()
    await other.until(lambda: other.is_lost)
    assert other.heard == [Drain("a:1", True)]
    other.line.send(Drain("nobody hears this", True))
    assert repr(other.line) == "<Line closed 0 bytes unsent>"


async def test_what_cannot_be_understood_ends_the_line() -> None:
    end, (ours, theirs) = End(), socket.socketpair()
    await end.open(ours)
    with theirs:
        theirs.send(frames.frame(b"\xc1 is no msgpack"))
        await end.until(lambda: end.is_lost)
    assert end.heard == []
