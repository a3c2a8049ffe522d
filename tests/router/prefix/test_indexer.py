"""The indexer's convention: registered engines and our own replicas, asked by tokens and by hashes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pointsman.blockhash import block_hashes
from router.errors import InvalidRequest
from router.prefix import indexer as indexer_module
from router.prefix.index import BlockIndex
from router.prefix.indexer import Indexer, Instance, Query, Registration, Removal, instances_of
from tests.router.prefix.publisher import Publisher, publishing, stored

SIZE = 4
OURS = [Instance("a:8000", "a:8000", "m", "default", SIZE), Instance("b:8000", "b:8000", "other", "default", SIZE)]


def make_indexer(index: BlockIndex | None = None) -> Indexer:
    return Indexer.over(index or BlockIndex(2**20), lambda: OURS, 2**20)


def registration(publisher: Publisher | None = None, **fields: Any) -> Registration:
    values: dict[str, Any] = {
        "endpoint": "tcp://127.0.0.1:9" if publisher is None else publisher.address,
        "replay_endpoint": None if publisher is None else publisher.replay_address,
        "instance_id": "node1",
        "modelname": "m",
        "block_size": SIZE,
        **fields,
    }
    return Registration(**values)


@asynccontextmanager
async def listening(indexer: Indexer) -> AsyncIterator[None]:
    task = asyncio.create_task(indexer.feeds.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def ask(indexer: Indexer, **fields: Any) -> Any:
    return await indexer.query(Query(**{"block_size": SIZE, "model": "m", **fields}))


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not await holds():  # noqa: ASYNC110  (sockets of another thread)
            await asyncio.sleep(0.005)


async def test_our_own_replicas_are_found_by_tokens_and_by_hashes() -> None:
    index, ids = BlockIndex(2**20), list(range(3 * SIZE + 2))
    chain = block_hashes(ids, SIZE)
    index.store("a:8000", None, chain[:2])
    index.store("a:8000", chain[1], chain[2:], is_host=True)
    indexer = make_indexer(index)
    expected = {"longest_matched": 12, "GPU": 8, "CPU": 12, "DISK": 0, "DP": {"0": 12}}
    assert await ask(indexer, token_ids=ids) == {"default": {"a:8000": expected}}
    assert await ask(indexer, seq_hashes=chain) == {"default": {"a:8000": expected}}
    assert await ask(indexer, block_hash=chain, instance_id="b:8000") == {"default": {}}
    assert await ask(indexer, token_ids=ids, tenant_id="other") == {"other": {}}
    assert (await ask(indexer, token_ids=ids, block_size=8))["default"] == {}


async def test_registered_engines_are_listened_to_and_each_rank_is_shown() -> None:
    indexer, ids = make_indexer(), list(range(2 * SIZE))
    async with publishing() as one, publishing() as other, listening(indexer):
        answer = indexer.register(registration(one, dp_rank=0))
        assert answer == {"status": "registered successfully", "instance_id": "node1"}
        indexer.register(registration(other, dp_rank=1))
        await one.publish(stored([1, 2], ids))
        await other.publish(stored([9], ids[:SIZE]))

        async def is_known() -> bool:
            return bool((await ask(indexer, token_ids=ids))["default"]["node1"]["DP"] == {"0": 8, "1": 4})

        await until(is_known)
        found = (await ask(indexer, token_ids=ids))["default"]
        assert found["node1"]["longest_matched"] == found["node1"]["GPU"] == 8
        gone = indexer.unregister(Removal("node1", dp_rank=0))
        assert gone["removed_instances"] == ["node1|default|0"]
        assert (await ask(indexer, token_ids=ids))["default"]["node1"]["longest_matched"] == 4
        indexer.unregister(Removal("node1"))
        assert "node1" not in (await ask(indexer, token_ids=ids))["default"]


async def test_tenants_models_adapters_and_salts_are_kept_apart() -> None:
    indexer, ids = make_indexer(), list(range(SIZE))
    async with publishing() as publisher, listening(indexer):
        indexer.register(registration(publisher, tenant_id="t", lora_name="sql", additionalsalt="w8a8"))
        await publisher.publish(stored([1], ids))

        async def matched(**fields: Any) -> int:
            found = await ask(indexer, **{"tenant_id": "t", "lora_name": "sql", "cache_salt": "w8a8", **fields})
            return max((each["longest_matched"] for each in found[fields.get("tenant_id", "t")].values()), default=-1)

        async def is_known() -> bool:
            return await matched(token_ids=ids) == SIZE

        await until(is_known)
        assert await matched(token_ids=ids, lora_name=None) == 0
        assert await matched(token_ids=ids, cache_salt=None) == 0
        assert await matched(token_ids=ids, model="x") == -1
        assert await matched(token_ids=ids, tenant_id="default", model="none") == -1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modelname": None}, "modelname"),
        ({"endpoint": "host:5557"}, "endpoint"),
        ({"replay_endpoint": "x"}, "replay_endpoint"),
        ({"block_size": 0}, "block_size"),
    ],
)
def test_a_wrong_registration_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_indexer().register(registration(**fields))
    assert caught.value.param == param


def test_registrations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer_module, "MAX_REGISTERED", 1)
    indexer = make_indexer()
    indexer.register(registration())
    indexer.register(registration())
    with pytest.raises(InvalidRequest, match="More than 1"):
        indexer.register(registration(instance_id="node2"))
    assert repr(indexer).startswith("<Indexer of 1 registered")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"seq_hashes": [2**64]}, "seq_hashes"),
        ({"token_ids": [1], "block_size": 0}, "block_size"),
    ],
)
async def test_a_wrong_query_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(make_indexer(), **fields)
    assert caught.value.param == param


def test_only_what_is_there_can_be_unregistered() -> None:
    with pytest.raises(InvalidRequest, match="no instance `x`"):
        make_indexer().unregister(Removal("x"))


def test_replicas_that_have_not_said_what_they_serve_are_left_out() -> None:
    rows: list[dict[str, object]] = [
        {"id": "a", "models": ["m", "lora"], "block_size": 16},
        {"id": "b", "models": [], "block_size": None},
    ]
    assert instances_of(rows) == [Instance("a", "a", "m", "default", 16)]
