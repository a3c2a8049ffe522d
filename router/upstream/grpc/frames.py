"""HTTP/2 frames (RFC 9113) as bytes, for one client. Knows layouts and numbers; knows no connection."""

from collections.abc import Iterator
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
# What either side may send in a frame until the other says that it takes more.
FRAME_BYTES = 16 * 1024
WINDOW_BYTES = 65_535
MAX_WINDOW_BYTES = 2**31 - 1


class Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    """Bits. END_STREAM on SETTINGS and PING means that they answer one. No IntFlag, whose `&` costs a microsecond."""

    END_STREAM = ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5


class Reason(IntEnum):
    """Why a stream or a connection was broken off."""

    NO_ERROR = 0
    REFUSED_STREAM = 7
    CANCEL = 8
    ENHANCE_YOUR_CALM = 11


def frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview) -> bytes:
    return b"".join((len(payload).to_bytes(3, "big"), bytes((kind, flags)), stream_id.to_bytes(4, "big"), payload))


def settings(values: dict[Setting, int]) -> bytes:
    pairs = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items())
    return frame(Kind.SETTINGS, 0, 0, b"".join(pairs))


def settings_in(payload: bytes) -> Iterator[tuple[int, int]]:
    for at in range(0, len(payload) - 5, 6):
        yield int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")


def window_update(stream_id: int, num_bytes: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream_id, num_bytes.to_bytes(4, "big"))


def reset(stream_id: int, reason: Reason) -> bytes:
    return frame(Kind.RST_STREAM, 0, stream_id, reason.to_bytes(4, "big"))


def headers(stream_id: int, block: bytes, most_bytes: int) -> bytes:
    """A request's header block, in as many frames as it takes."""
    pieces = [block[at : at + most_bytes] for at in range(0, len(block), most_bytes)]
    last = len(pieces) - 1
    return b"".join(
        frame(
            Kind.CONTINUATION if number else Kind.HEADERS, Flag.END_HEADERS if number == last else 0, stream_id, piece
        )
        for number, piece in enumerate(pieces)
    )


def unpadded(flags: int, payload: bytes) -> bytes:
    """Less what pads it and what once told its priority. Raises ValueError where there is more of these than of all."""
    start, num_padding = 0, 0
    if flags & Flag.PADDED:
        start, num_padding = 1, payload[0] if payload else 1
    if flags & Flag.PRIORITY:
        start += 5
    if start + num_padding > len(payload):
        raise ValueError("a frame has more padding than content")
    return payload[start : len(payload) - num_padding]
