"""What a process is started with: a document in a memfd, so that no key stands in a command line or an environment.
Knows its shape; knows nothing of what is done with it.
"""

import os
from collections.abc import Sequence

import msgspec

from router.config import Settings


class Orders(msgspec.Struct, frozen=True):
    """Descriptors are open in the process that reads it. `line` leads to the supervisor; its end is the process's.

    `feed_address` is an abstract unix address, without its leading zero byte.
    """

    settings: Settings
    board: int
    line: int
    feed_address: str


class RouterOrders(Orders, frozen=True):
    """`slot` is whose listening sockets are its own; `row` its row on the board. `sockets` holds every slot's, so that
    a dead sibling's can be served; `wakers` an event descriptor for each row."""

    slot: int
    row: int
    sockets: Sequence[Sequence[int]]
    wakers: Sequence[int]


class FeedOrders(Orders, frozen=True):
    """`listener` is the feed's socket; `drained` are replicas that shall get nothing new."""

    listener: int
    drained: Sequence[str]


def write(orders: RouterOrders | FeedOrders) -> int:
    """A descriptor to read it from; the caller closes it."""
    descriptor = os.memfd_create("pointsman-orders")
    os.write(descriptor, msgspec.msgpack.encode(orders))
    return descriptor


def read_for_router(descriptor: int) -> RouterOrders:
    return msgspec.msgpack.decode(_read(descriptor), type=RouterOrders)


def read_for_feed(descriptor: int) -> FeedOrders:
    return msgspec.msgpack.decode(_read(descriptor), type=FeedOrders)


def _read(descriptor: int) -> bytes:
    """All of it, and close it."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
