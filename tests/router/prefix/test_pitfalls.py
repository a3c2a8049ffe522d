"""Faults of routers in use, turned into what this room owes: one test each, by the words of the fault."""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from pointsman.blockhash import block_hashes
from router.core import Pool, Request, Surface
from router.prefix.caches import Caches
from router.prefix.changes import apply
from router.prefix.events import decode
from router.prefix.follower import FeedState, FeedStatus, Follower
from router.prefix.index import BlockIndex
from router.prefix.knowledge import Knowing
from router.prefix.ledger import Ledger
from router.prefix.reader import Prompts
from router.prefix.source import TokenizerSource
from router.prefix.tree import BLOCK_BYTES, RUN_BYTES
from tests.router.nouns import make_replica, make_request
from tests.router.prefix.publisher import batch, removed, stored

SIZE = 16
IDS = list(range(4 * SIZE))
CHAIN = block_hashes(IDS, SIZE)


class Replica:
    """One that tells what it holds, as its engine would: under names of its own."""

    def __init__(self, index: BlockIndex, id: str = "a") -> None:
        self.index, self.id = index, id
        self.follower = Follower(Ledger(SIZE), self._tell, lambda _: None)

    def _tell(self, changes: Sequence[Any]) -> None:
        for change in changes:
            apply(self.index, self.id, change)

    def says(self, *events: Any) -> None:
        self.follower.hear(batch(*events))


def depth(index: BlockIndex, chain: Sequence[int] = CHAIN, id: str = "a") -> int:
    return index.match(chain).get(id, 0)


def test_12_a_signal_that_is_missing_is_said_and_never_silently_random() -> None:
    pool = Pool("m", SIZE)
    for has_tokenizer, status, knowing in (
        (True, FeedStatus(FeedState.SYNCED), Knowing.EXACT),
        (True, FeedStatus(), Knowing.APPROXIMATE),
        (True, FeedStatus(FeedState.LATE, "no replay"), Knowing.APPROXIMATE),
        (False, FeedStatus(FeedState.SYNCED), Knowing.BLIND),
    ):
        caches = Caches(BlockIndex(2**20), lambda _, has=has_tokenizer: has)  # type: ignore[misc]
        caches.tell_status("a", status)
        known = caches.knowledge.of(make_replica("a", pool=pool))
        assert known.knowing is knowing
        assert bool(known.reason) is (knowing is not Knowing.EXACT)


def test_14_the_index_evicts_under_a_hard_cap_of_bytes_and_shows_its_size() -> None:
    index = BlockIndex(100 * (BLOCK_BYTES + RUN_BYTES))
    for at in range(500):
        index.store("a", None, block_hashes(range(at, at + 8 * SIZE), SIZE))
        assert index.num_bytes <= index.max_bytes
    assert 0 < index.total_blocks < 1000
    assert depth(index, block_hashes(range(499, 499 + 8 * SIZE), SIZE)) == 8


def test_15_a_replica_that_is_lost_leaves_no_stale_block() -> None:
    caches = Caches(BlockIndex(2**20), lambda _: True)
    Replica(caches.index).says(stored([1, 2, 3, 4], IDS))
    assert depth(caches.index) == 4
    caches.lost("a")
    assert depth(caches.index) == 0


def test_17_a_block_behind_an_unknown_one_is_no_beginning_and_only_leading_blocks_count() -> None:
    index = BlockIndex(2**20)
    replica = Replica(index)
    replica.says(stored([3, 4], IDS[2 * SIZE :], parent=2))
    assert depth(index) == 0
    assert depth(index, block_hashes(IDS[2 * SIZE :], SIZE)) == 0
    replica.says(stored([1, 2, 3, 4], IDS))
    replica.says(removed(2))
    assert depth(index) == 1
    other = [*IDS[:SIZE], *range(900, 900 + SIZE), *IDS[2 * SIZE :]]
    assert depth(index, block_hashes(other, SIZE)) == 1


@pytest.mark.parametrize(
    "fields", [{"lora_name": "sql"}, {"extra_keys": [["pepper"], None, None, None]}, {"extra_keys": [[["img", 3]]] * 4}]
)
def test_18_the_same_text_with_another_adapter_salt_or_image_shares_nothing(fields: dict[str, Any]) -> None:
    index = BlockIndex(2**20)
    Replica(index).says(stored([1, 2, 3, 4], IDS, **fields))
    assert index.total_blocks == 4
    assert depth(index) == 0


def test_18_the_same_chat_with_other_tools_shares_nothing(served: dict[str, Any]) -> None:
    served["chat_template"] = "{% if tools %}{{ tools | tojson }}{% endif %}" + served["chat_template"]
    prompts, pool = Prompts(), Pool("fox", SIZE)
    prompts.configure(pool, TokenizerSource.from_served(served))
    chat = [{"role": "user", "content": "Hello there, friend! " * 20}]
    found = []
    for options in ({}, {"tools": [{"name": "one"}]}, {"tools": [{"name": "two"}]}):
        request = Request("r", Surface.CHAT, "fox", b"", 0.0, 1.0, messages=chat, template_options=options)
        prompt = prompts.read_now(request, pool, None)
        assert prompt is not None
        found.append(prompt.block_hashes[0])
    assert len(set(found)) == 3


def test_19_the_engine_s_hash_seed_does_not_matter() -> None:
    """Two engines name the same blocks differently; both are found under our hashes."""
    index = BlockIndex(2**20)
    Replica(index, "a").says(stored([11, 12, 13, 14], IDS))
    Replica(index, "b").says(stored([b"\x01" * 32, b"\x02" * 32, b"\x03" * 32, b"\x04" * 32], IDS))
    assert index.match(CHAIN) == {"a": 4, "b": 4}


def test_20_a_field_or_an_event_of_a_later_engine_breaks_nothing() -> None:
    index = BlockIndex(2**20)
    replica = Replica(index)
    replica.says({"type": "BlocksBlessed"}, stored([1, 2, 3, 4], IDS, aura="gold"), ["BlockPinned", [1]])
    assert depth(index) == 4
    assert decode(batch({"type": "BlocksBlessed"})).num_skipped == 1


def test_21_a_router_that_begins_is_not_blind_and_all_fall_back_alike() -> None:
    """What one router was told another takes over; and without any knowledge the same prompt has the same hashes."""
    told, fresh = BlockIndex(2**20), BlockIndex(2**20)
    Replica(told).says(stored([1, 2, 3, 4], IDS))
    for packed in told.chains("a"):
        fresh.insert("a", array("Q", packed))
    assert depth(fresh) == 4
    pool, chat = Pool("m", SIZE), [{"role": "user", "content": "text " * 100}]
    one, other = (Prompts().read_now(make_request(messages=chat), pool, None) for _ in range(2))
    assert one == other


async def test_22_a_long_prompt_is_tokenized_beside_the_event_loop(served: dict[str, Any]) -> None:
    prompts, pool = Prompts(inline_bytes=1000), Pool("fox", SIZE)
    prompts.configure(pool, TokenizerSource.from_served(served))
    request = make_request(messages=[{"role": "user", "content": "Hello there, friend! " * 5000}])
    assert prompts.read_now(request, pool, None) is None
    reading = asyncio.create_task(prompts.read(request, pool, None))
    num_turns = 0
    while not reading.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns > 1
    assert (await reading).is_exact
    prompts.close()


def test_23_a_chat_is_hashed_with_its_template_as_the_engine_renders_it(served: dict[str, Any]) -> None:
    prompts, pool = Prompts(), Pool("fox", SIZE)
    prompts.configure(pool, TokenizerSource.from_served(served))
    chat = prompts.read_now(make_request(messages=[{"role": "user", "content": "Hello " * 40}]), pool, None)
    rendered = (
        "<|im_start|>system\nYou are a fox<|im_end|>\n<|im_start|>user\n"
        + "Hello " * 40
        + "<|im_end|>\n<|im_start|>assistant\n"
    )
    text = prompts.read_now(make_request(messages=None, surface=Surface.COMPLETIONS, prompt=rendered), pool, None)
    assert chat is not None
    assert text is not None
    assert chat.block_hashes == text.block_hashes
