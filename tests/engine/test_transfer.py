"""KV between two engines over real sockets, with bytes that stand for tokens in place of tensors."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pytest

from engine.batch import Batch
from engine.kv_wire import KvTransferParams
from engine.loop import EngineLoop
from engine.prefixes import NO_SCOPE, Medium, Scope
from engine.sequence import Request
from engine.transfer import KvMemory, KvTransfer
from tests.engine.requests import BLOCK_SIZE, add_adapters, core, next_number, request, tokens_by

BLOCK_BYTES = BLOCK_SIZE * 4
PROMPT = tuple(range(10, 10 + 5 * BLOCK_SIZE + 2))


@dataclass(eq=False)
class Engine:
    """`content` has for each block the tokens whose KV it holds; `computed` counts the tokens of each step."""

    loop: EngineLoop
    transfer: KvTransfer
    content: dict[int, bytes]
    computed: list[int] = field(default_factory=list)

    async def generate(self, asked: Request) -> list[int]:
        with self.loop.submit(asked) as outputs:
            return [token async for output in outputs for token in output.token_ids]

    async def blocks(self) -> str:
        return await self.loop.call(partial(repr, self.loop.core.scheduler.pool))


@asynccontextmanager
async def running(name: str, *, format: str = "f", **options: int) -> AsyncIterator[Engine]:
    content: dict[int, bytes] = {}
    computed: list[int] = []

    def compute(batch: Batch) -> list[int | None]:
        computed.append(batch.num_tokens)
        for chunk in batch.chunks:
            for position in range(chunk.start, chunk.end):
                block, offset = chunk.sequence.table[position // BLOCK_SIZE], position % BLOCK_SIZE * 4
                old = content.get(block, bytes(BLOCK_BYTES))
                token = array("I", [chunk.sequence.tokens[position]]).tobytes()
                content[block] = old[:offset] + token + old[offset + 4 :]
        return tokens_by(next_number, batch)

    def read(blocks: Any) -> memoryview:
        return memoryview(b"".join(content[block] for block in blocks))

    def write(blocks: Any, received: bytearray) -> None:
        for index, block in enumerate(blocks):
            content[block] = bytes(received[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES])

    loop = EngineLoop(core(**options), compute)
    memory = KvMemory(format, BLOCK_BYTES, read, write, lambda: None)
    loop.start()
    try:
        yield Engine(loop, KvTransfer(loop, lambda: memory, name), content, computed)
    finally:
        loop.stop("the test is over")
        assert await asyncio.to_thread(loop.join, 10)


@dataclass(eq=False)
class Pair:
    prefill: Engine
    decode: Engine


@asynccontextmanager
async def pair(**decode_options: Any) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(running("prefill", num_slots=1))
        decode = await stack.enter_async_context(running("decode", num_slots=1, **decode_options))
        server = await prefill.transfer.serve("127.0.0.1", 0)
        stack.callback(server.close)
        yield Pair(prefill, decode)


async def offered(engine: Engine, prompt: tuple[int, ...] = PROMPT, scope: Scope = NO_SCOPE) -> KvTransferParams:
    await engine.generate(request(prompt, salt=scope.salt, adapter=scope.adapter, max_tokens=1))
    return await engine.transfer.offer(prompt, scope)


async def test_the_second_engine_computes_only_what_did_not_come() -> None:
    async with pair() as engines:
        params = await offered(engines.prefill)
        assert (params.do_remote_prefill, params.do_remote_decode) == (True, False)
        assert (params.remote_engine_id, len(params.remote_block_ids or [])) == ("prefill", 5)
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 5 * BLOCK_SIZE
        tokens = await engines.decode.generate(request(PROMPT, max_tokens=3))
        assert tokens == await engines.prefill.generate(request(PROMPT, max_tokens=3))
        assert engines.decode.computed == [2, 1, 1]
        held = {prefix.tokens: prefix.block for prefix in engines.decode.loop.core.scheduler.pool.held(Medium.GPU)}
        for start in range(0, 5 * BLOCK_SIZE, BLOCK_SIZE):
            block_tokens = PROMPT[start : start + BLOCK_SIZE]
            assert engines.decode.content[held[block_tokens] or 0] == array("I", block_tokens).tobytes()


async def test_bytes_and_time_are_counted_on_both_sides() -> None:
    async with pair() as engines:
        await engines.decode.transfer.fetch(await offered(engines.prefill), PROMPT, NO_SCOPE)
        got = engines.decode.transfer.stats
        assert (got.fetched_bytes, got.num_fetched_tokens, got.num_failures) == (5 * BLOCK_BYTES, 5 * BLOCK_SIZE, 0)
        assert got.fetched_s > 0
        await until_nothing_is_held(engines.prefill)
        assert engines.prefill.transfer.stats.sent_bytes == 5 * BLOCK_BYTES


async def test_only_what_is_not_known_already_is_fetched() -> None:
    async with pair() as engines:
        params = await offered(engines.prefill)
        await engines.decode.generate(request(PROMPT[: 2 * BLOCK_SIZE + 1], max_tokens=1))
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 3 * BLOCK_SIZE
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 0
        assert await engines.decode.blocks() == "<BlockPool 59 free 0 used 5 cached>"


async def test_a_block_that_holds_something_else_by_now_is_not_handed_out() -> None:
    async with pair() as engines:
        params = await offered(engines.prefill)
        ids = list(params.remote_block_ids or [])
        swapped = msgspec.structs.replace(params, remote_block_ids=[*ids[:2], ids[3], ids[2], ids[4]])
        assert await engines.decode.transfer.fetch(swapped, PROMPT, NO_SCOPE) == 2 * BLOCK_SIZE
        assert len(await engines.decode.generate(request(PROMPT, max_tokens=3))) == 3


@pytest.mark.parametrize("foreign", ["tokens", "salt", "engine", "format"])
async def test_foreign_kv_is_never_handed_out(foreign: str) -> None:
    async with pair(format="other" if foreign == "format" else "f") as engines:
        params = await offered(engines.prefill)
        prompt, scope = PROMPT, NO_SCOPE
        if foreign == "tokens":
            prompt = (99, *PROMPT[1:])
        elif foreign == "salt":
            scope = Scope(salt="another tenant's")
        elif foreign == "engine":
            params = msgspec.structs.replace(params, remote_engine_id="an earlier life")
        assert await engines.decode.transfer.fetch(params, prompt, scope) == 0
        assert await engines.decode.blocks() == "<BlockPool 64 free 0 used 0 cached>"


@pytest.mark.parametrize("digest", [0, 1])
async def test_an_adapters_kv_goes_only_to_the_same_adapter(digest: int) -> None:
    async with pair() as engines:
        for engine in (engines.prefill, engines.decode):
            add_adapters(engine.loop.core.scheduler, "blue")
        engines.decode.loop.core.scheduler.adapters.find("blue").digest = digest
        scope = Scope("blue", None, 1)
        params = await offered(engines.prefill, scope=scope)
        num_tokens = await engines.decode.transfer.fetch(params, PROMPT, scope)
        assert num_tokens == (0 if digest else 5 * BLOCK_SIZE)
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 0


async def test_a_replica_that_is_gone_costs_the_time_to_compute_and_no_more() -> None:
    async with pair() as engines:
        params = msgspec.structs.replace(await offered(engines.prefill), remote_port=1)
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 0
        assert engines.decode.transfer.stats.num_failures == 1
        assert await engines.decode.generate(request(PROMPT, max_tokens=1)) == [PROMPT[-1] + 1]
        assert await engines.decode.blocks() == "<BlockPool 59 free 0 used 5 cached>"


@pytest.mark.parametrize("answer", [b"", b"\xff\xff\xff\xff", b"\x00\x00\x00\x03\xff\xff\xff", b"\x00\x00\x00\x01\x00"])
async def test_a_nonsense_answer_leaves_nothing_behind(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with pair() as engines, await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        params = msgspec.structs.replace(await offered(engines.prefill), remote_port=server.sockets[0].getsockname()[1])
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 0
        assert await engines.decode.blocks() == "<BlockPool 64 free 0 used 0 cached>"


@pytest.mark.parametrize("question", [b"", b"\xff\xff\xff\xff", b"\x00\x00\x00\x03\xff\xff\xff"])
async def test_a_nonsense_question_is_counted_and_the_next_one_answered(question: bytes) -> None:
    async with pair() as engines:
        params = await offered(engines.prefill)
        reader, writer = await asyncio.open_connection(params.remote_host, params.remote_port)
        writer.write(question)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert engines.prefill.transfer.stats.num_failures == 1
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 5 * BLOCK_SIZE


async def test_where_there_is_no_room_nothing_is_fetched() -> None:
    async with pair(num_blocks=6) as engines:
        params = await offered(engines.prefill)
        held = engines.decode.loop.core.scheduler.pool.allocate(2)
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 0
        engines.decode.loop.core.scheduler.pool.release(held)


async def test_a_cancelled_fetch_gives_its_blocks_back() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    asked = asyncio.Event()
    async with pair() as engines, await asyncio.start_server(never, "127.0.0.1", 0) as server:
        params = msgspec.structs.replace(await offered(engines.prefill), remote_port=server.sockets[0].getsockname()[1])
        fetching = asyncio.create_task(engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE))
        await asked.wait()
        assert await engines.decode.blocks() == "<BlockPool 59 free 5 used 0 cached>"
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert await engines.decode.blocks() == "<BlockPool 64 free 0 used 0 cached>"


async def test_what_comes_after_all_was_forgotten_is_not_shared() -> None:
    async with pair() as engines:
        params = await offered(engines.prefill)
        write = engines.decode.transfer.memory().write
        loop = engines.decode.loop

        def forget_and_write(blocks: Any, content: bytearray) -> None:
            loop.core.scheduler.pool.clear()
            write(blocks, content)

        forgetful = KvMemory("f", BLOCK_BYTES, lambda blocks: memoryview(b""), forget_and_write, lambda: None)
        engines.decode.transfer.memory = lambda: forgetful
        assert await engines.decode.transfer.fetch(params, PROMPT, NO_SCOPE) == 0
        assert await engines.decode.blocks() == "<BlockPool 64 free 0 used 0 cached>"


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        (KvTransferParams(do_remote_decode=True), "start it with --kv-transfer-port"),
        (KvTransferParams(do_remote_prefill=True), "do_remote_prefill needs remote_engine_id"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(params: KvTransferParams, complaint: str) -> None:
    async with running("alone") as engine:
        with pytest.raises(ValueError, match=complaint):
            engine.transfer.check(params)


async def until_nothing_is_held(engine: Engine) -> None:
    async with asyncio.timeout(10):
        while " 0 used" not in await engine.blocks():
            pass
