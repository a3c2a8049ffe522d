import asyncio
import os
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from router.core import Prompt
from router.workers import doors, frames
from router.workers.board import Board
from router.workers.desk import Desk
from router.workers.frames import Dispatches, Hello, Message
from router.workers.line import Line
from router.workers.sharing import REPEAT_S, Sharing
from tests.router.nouns import make_demand, make_prompt, make_replica
from tests.router.replicas.fakes import Wakes, make_decision


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(2)
    yield board
    board.close()


class FakeFeed(Wakes):
    """Hears workers, and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Message] = []
        self.lines: set[Line] = set()

    def hear(self, line: Line, payload: bytes) -> None:
        self.lines.add(line)
        self.heard.append(frames.to_feed.decode(payload))
        self.wake()

    def chains(self) -> list[tuple[str, bytes]]:
        return [chain for message in self.heard if isinstance(message, Dispatches) for chain in message.chains]


@asynccontextmanager
async def following(board: Board) -> AsyncIterator[tuple[Sharing, FakeFeed]]:
    listener, address = doors.listen_for_feed()
    listener.setblocking(False)
    feed = FakeFeed()
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: Line(feed.hear, feed.lines.discard), sock=listener
    )
    sharing = Sharing(Desk(board, 0), 0, address, [])
    task = asyncio.create_task(sharing.follow(lambda _: None))
    try:
        await feed.until(lambda: Hello(0) in feed.heard)
        yield sharing, feed
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        server.close()
        for line in list(feed.lines):
            line.abort()


def dispatch(sharing: Sharing, first_hash: int, now: float, prompt: Prompt | None = None) -> None:
    demand = make_demand(prompt=prompt or make_prompt(32, first_hash=first_hash))
    sharing.dispatched(demand, make_decision(make_replica("a")), now)


async def test_a_chain_is_told_once_in_a_while(board: Board) -> None:
    async with following(board) as (sharing, feed):
        for now in (0.0, REPEAT_S / 2, REPEAT_S):
            dispatch(sharing, 10, now)
        dispatch(sharing, 20, REPEAT_S)
        dispatch(sharing, 0, REPEAT_S, make_prompt(8))  # not one whole block
        await feed.until(lambda: len(feed.chains()) >= 3)
        told = [tuple(array("Q", packed)) for _, packed in feed.chains()]
        assert told == [(10, 11), (10, 11), (20, 21)]


async def test_a_worker_comes_back_to_a_feed_that_dropped_it(board: Board) -> None:
    async with following(board) as (_, feed):
        for line in list(feed.lines):
            line.abort()
        await feed.until(lambda: feed.heard.count(Hello(0)) == 2)


def test_only_siblings_who_wait_are_woken(board: Board) -> None:
    wakers = doors.open_wakers(2)
    one = Sharing(Desk(board, 0), 0, "nobody", wakers)
    other = Sharing(Desk(board, 1), 1, "nobody", wakers)
    one.count_waiting(3)
    assert not one.wake_waiting()
    assert other.wake_waiting()
    assert os.eventfd_read(wakers[0]) == 1
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wakers[1])
    for waker in wakers:
        os.close(waker)


def test_open_requests_are_on_the_board(board: Board) -> None:
    one, other = Sharing(Desk(board, 0), 0, "", []), Desk(board, 1)
    one.count_open(7)
    assert other.num_open_elsewhere() == 7
