"""How far away a replica is: the time that a packet takes there and back. Knows TCP and samples; knows nothing of what
is asked over it.

It is that of opening a connection, which the kernels on both sides do by themselves: neither an engine at work nor a
busy loop of ours is in it. The least of the last few counts, as nothing but the way can make all of them late.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from router.core import Replica

# With a sample each half a minute, a way that became longer is known after some minutes, a shorter one at once.
NUM_SAMPLES = 5
# What counts in a decision: whole milliseconds. Differences within one data centre are noise.
UNIT_S = 0.001
# Of Linux' `struct tcp_info`: the smoothed time there and back, in microseconds.
_RTT = struct.Struct("@I")
_RTT_AT = 68
_PORTS = {"https": 443, "grpcs": 443}


@dataclass(eq=False, slots=True)
class Distance:
    """`said_s` is what the operator says: then nothing is measured."""

    said_s: float | None = None
    samples_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_SAMPLES))

    @property
    def round_trip_s(self) -> float | None:
        """None while it is unknown."""
        return self.said_s if self.said_s is not None else min(self.samples_s, default=None)

    def learn(self, seconds: float, replica: Replica) -> None:
        """One sample more; decisions go by what comes of it."""
        self.samples_s.append(seconds)
        self.tell(replica)

    def adopt(self, found_s: float | None, replica: Replica) -> None:
        """What another process measured; None while it has not."""
        if found_s is not None and found_s != self.round_trip_s:
            self.samples_s.clear()
            self.learn(found_s, replica)

    def tell(self, replica: Replica) -> None:
        measured_s = int(min(self.samples_s, default=0.0) / UNIT_S) * UNIT_S
        replica.round_trip_s = measured_s if self.said_s is None else self.said_s

    def __repr__(self) -> str:
        found_s = self.round_trip_s
        return f"<Distance {'unknown' if found_s is None else f'{found_s * 1e3:.2f} ms'}>"


async def measure(url: str, timeout_s: float) -> float | None:
    """Seconds; None where no connection opened in time. The health of a replica is not judged by it."""
    place = urlsplit(url)
    port = place.port or _PORTS.get(place.scheme, 80)
    try:
        async with asyncio.timeout(timeout_s):
            found = await asyncio.get_running_loop().getaddrinfo(place.hostname, port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, address in found:
                with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as connection:
                    return await _open(connection, address)
    except (OSError, TimeoutError):
        pass
    return None


async def _open(connection: socket.socket, address: tuple[str | int | bytes, ...]) -> float:
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    began = loop.time()
    await loop.sock_connect(connection, address)
    return _of_kernel(connection) or loop.time() - began


def _of_kernel(connection: socket.socket) -> float | None:
    """What the kernel measured while the connection opened; None where it does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + _RTT.size)
    return _RTT.unpack_from(told, _RTT_AT)[0] / 1e6 if len(told) >= _RTT_AT + _RTT.size else None
