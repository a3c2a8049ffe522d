"""KV events that are asked for: numbers that are missing, engines that begin anew, pages that are none."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from pointsman.blockhash import block_hashes
from router.prefix.changes import Change, apply
from router.prefix.follower import FeedState, Follower
from router.prefix.index import BlockIndex
from router.prefix.ledger import Ledger
from router.prefix.poll_source import PollSource
from tests.router.prefix.test_events import stored_block
from tests.router.served import served


def page(*entries: tuple[int, dict[str, Any]]) -> bytes:
    return msgspec.json.encode([{"event_id": number, "data": entry} for number, entry in entries])


def stored(*blocks: Any, parent: int | None = None) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


CREATED = {"type": "created", "num_blocks_per_cache_level": [8, 8]}


class Rig:
    def __init__(self, url: str = "http://nowhere") -> None:
        self.index = BlockIndex(2**20)
        self.follower = Follower(Ledger(2), self._tell, lambda _: None)
        self.source = PollSource(url, "key", interval_s=0.01)

    def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            apply(self.index, "a", change)

    def take(self, *entries: tuple[int, dict[str, Any]]) -> None:
        self.source.take(page(*entries), self.follower)

    def depth(self, *ids: int) -> int:
        return self.index.match(block_hashes(ids, 2)).get("a", 0)

    def state(self) -> FeedState:
        return self.follower.status.state


def test_from_the_beginning_all_is_known() -> None:
    rig = Rig()
    rig.take((0, CREATED), (1, stored(stored_block(7, 1, 2), stored_block(8, 3, 4))))
    assert rig.state() is FeedState.SYNCED
    rig.take((2, {"type": "removed", "block_hashes": [8]}))
    rig.take()
    assert rig.depth(1, 2, 3, 4) == 1
    assert rig.state() is FeedState.SYNCED


def test_one_that_is_asked_late_says_so() -> None:
    rig = Rig()
    rig.take()
    assert rig.state() is FeedState.LATE
    rig.take((5, stored(stored_block(7, 1, 2))))
    assert (rig.state(), rig.depth(1, 2)) == (FeedState.LATE, 1)


def test_numbers_that_are_missing_clear_the_replica() -> None:
    rig = Rig()
    rig.take((0, CREATED), (1, stored(stored_block(7, 1, 2))))
    rig.take((4, stored(stored_block(9, 5, 6))))
    assert (rig.depth(1, 2), rig.depth(5, 6)) == (0, 1)
    assert rig.state() is FeedState.LATE


def test_an_engine_that_begins_anew_holds_nothing() -> None:
    rig = Rig()
    rig.take((0, CREATED), (1, stored(stored_block(7, 1, 2))))
    rig.take((0, CREATED))
    assert rig.depth(1, 2) == 0
    assert rig.state() is FeedState.SYNCED


def test_a_replica_that_was_lost_is_not_believed_until_it_says_more() -> None:
    rig = Rig()
    rig.take((0, CREATED), (1, stored(stored_block(7, 1, 2))))
    rig.source.begin_anew()
    rig.take()
    assert (rig.depth(1, 2), rig.state()) == (0, FeedState.LATE)


def test_a_block_in_host_memory_is_known_as_such_and_moves() -> None:
    rig = Rig()
    update = {"type": "updated", "block_hash": 7, "cache_level": {"old_value": 0, "new_value": 1}}
    rig.take((0, CREATED), (1, stored(stored_block(7, 1, 2))), (2, update))
    chain = block_hashes([1, 2], 2)
    assert rig.index.match_device(chain, rig.index.match(chain)) == {}
    assert rig.depth(1, 2) == 1


def test_a_page_that_is_none_forgets_what_was_believed() -> None:
    rig = Rig()
    rig.take((0, CREATED), (1, stored(stored_block(7, 1, 2))))
    rig.source.take(b"<html>", rig.follower)
    assert rig.depth(1, 2) == 0


async def test_it_asks_with_the_key_again_and_again_and_bears_failures() -> None:
    keys: list[str | None] = []
    pages = [page((0, CREATED), (1, stored(stored_block(7, 1, 2)))), None, page(), page((0, CREATED))]

    async def answer(request: web.Request) -> web.Response:
        keys.append(request.headers.get("authorization"))
        body = pages[min(len(keys), len(pages)) - 1]
        return web.Response(status=500) if body is None else web.Response(body=body)

    app = web.Application()
    app.router.add_get("/kv_cache_events", answer)
    async with served(app) as url:
        rig = Rig(f"{url}/kv_cache_events")
        states: list[FeedState] = []
        rig.follower.on_status = lambda status: states.append(status.state)
        task = asyncio.create_task(rig.source.follow(rig.follower))
        async with asyncio.timeout(10):
            while len(keys) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert set(keys) == {"Bearer key"}
    assert FeedState.ABSENT in states
    assert states[-1] is FeedState.SYNCED
