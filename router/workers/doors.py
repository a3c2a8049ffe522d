"""The sockets that several workers share: bound once, by the supervisor, and passed down by descriptor.

Each worker has listening sockets of its own on the one address (SO_REUSEPORT): the kernel spreads connections over them
by a hash. One socket for all would be drained by whichever worker wakes first: an accept loop takes all that wait, so
a client that opens 64 connections at once would have them all on one worker.

The supervisor keeps every socket open. So connections that wait in the queue of a worker that died are not lost: a
sibling, which has that socket too, takes them until a new worker does.
"""

import contextlib
import os
import secrets
import socket
import struct

Address = tuple[str | int | bytes, ...]
BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # process, user and group, as the kernel has them


def listen(host: str, port: int, num_slots: int) -> list[list[socket.socket]]:
    """For each slot a listening socket on each address of `host`, all on the same port. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses: list[tuple[int, Address]] = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    slots: list[list[socket.socket]] = [[] for _ in range(num_slots)]
    with contextlib.ExitStack() as undo:
        for family, address in addresses:
            if port:
                _refuse_if_taken(family, address)
            for slot in slots:
                opened = undo.enter_context(_open(family, address))
                address = (address[0], opened.getsockname()[1], *address[2:])  # the same for all, where any will do
                slot.append(opened)
        undo.pop_all()
    return slots


def listen_for_feed() -> tuple[socket.socket, str]:
    """Where the feed hears the workers: an abstract unix address, of which no file is left, and its name.

    Who connects is asked for its user on both sides, as anybody may try.
    """
    name = f"pointsman-{secrets.token_hex(16)}"
    opened = socket.socket(socket.AF_UNIX)
    opened.bind("\0" + name)
    opened.listen(BACKLOG)
    return opened, name


def connect_to_feed(name: str) -> socket.socket:
    """Never waits. Raises OSError where nobody listens, or somebody else does."""
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.setblocking(False)
        opened.connect("\0" + name)
        if not peer_is_us(opened):
            raise PermissionError("a process of another user listens at the feed's address")
    except OSError:
        opened.close()
        raise
    return opened


def peer_is_us(opened: socket.socket) -> bool:
    """Is the other side a process of our own user?"""
    credentials = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return bool(uid == os.getuid())


def open_wakers(num_rows: int) -> list[int]:
    """An event descriptor for each row of the board."""
    return [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(num_rows)]


def _refuse_if_taken(family: int, address: Address) -> None:
    """SO_REUSEPORT would let two routers of one user share a port without a word."""
    with _new(family) as probe:
        probe.bind(address)


def _open(family: int, address: Address) -> socket.socket:
    opened = _new(family)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _new(family: int) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return opened
