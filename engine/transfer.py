"""A prompt's KV from the engine that computed it to the one that decodes, over TCP, block by block.

Knows block ids, tokens and the order of a conversation. Must not know tensors, how frames are written, HTTP, or what is
done with the KV afterwards. What cannot be had is no error: the prompt is computed then.

The asker sends one frame, the other side one frame and then the blocks' bytes. A block is handed out only if it holds
the very tokens that are asked for, under the same adapter and salt: block ids are reused, and 64 bits of hash may
collide.
"""

import asyncio
import logging
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial

import msgspec

from engine.kv_wire import Ask, KvTransferParams, Prompt, Reply, receive, send
from engine.loop import EngineError, EngineLoop
from engine.prefixes import Prefix, Scope
from engine.stats import TransferStats
from pointsman.blockhash import block_hashes

log = logging.getLogger(__name__)

# So much is read and sent in one go: a step between two of them is not held up.
_GROUP_BYTES = 4 << 20
_TIMEOUT_S = 30.0
# Addresses that nobody can call.
_EVERYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class KvMemory:
    """The bytes of blocks that are held: `read` and `write` block. `flush`, on the stepping thread, makes the copies
    between the tiers that wait. `format` as in a question; it tells weights apart too."""

    format: str
    bytes_per_block: int
    read: Callable[[List[int]], memoryview]
    write: Callable[[List[int], bytearray], None]
    flush: Callable[[], None]


@dataclass(eq=False, slots=True)
class KvTransfer:
    """`serve` hands KV out; `offer` says how to get a prompt's; `fetch` gets one from elsewhere into the cache."""

    engine: EngineLoop
    memory: Callable[[], KvMemory]
    engine_id: str
    host: str | None = None
    port: int | None = None

    @property
    def stats(self) -> TransferStats:
        return self.engine.core.stats.transfer

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Raises OSError if the address cannot be had."""
        server = await asyncio.start_server(self._answer, host, port)
        self.host = socket.gethostname() if host in _EVERYWHERE else host
        self.port = server.sockets[0].getsockname()[1]
        return server

    def check(self, params: KvTransferParams) -> None:
        """Raises ValueError for what cannot be done here, or lacks a field."""
        if params.do_remote_decode and self.port is None:
            raise ValueError("do_remote_decode: this engine hands out no KV; start it with --kv-transfer-port")
        if params.do_remote_prefill:
            for name in ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"):
                if getattr(params, name) is None:
                    raise ValueError(f"do_remote_prefill needs {name}")

    async def offer(self, tokens: List[int], scope: Scope) -> KvTransferParams:
        """What the engine that decodes is to be sent, after these tokens were computed."""
        prefixes = await self.engine.call(partial(self._match, tokens, scope))
        return KvTransferParams(
            do_remote_prefill=True,
            remote_engine_id=self.engine_id,
            remote_block_ids=[prefix.block for prefix in prefixes if prefix.block is not None],
            remote_host=self.host,
            remote_port=self.port,
        )

    async def fetch(self, params: KvTransferParams, tokens: List[int], scope: Scope) -> int:
        """Gets what the cache lacks of the prompt; returns how many tokens it got. Only a cancel is raised."""
        start_s = time.monotonic()
        self.stats.num_wanted_tokens += len(tokens)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                num_blocks = await self._fetch(params, tokens, scope)
        except (OSError, EOFError, TimeoutError, ValueError, msgspec.MsgspecError, EngineError) as error:
            self.stats.num_failures += 1
            log.warning("KV of %s:%s is not to be had: %s", params.remote_host, params.remote_port, error)
            return 0
        self.stats.fetched_s += time.monotonic() - start_s
        self.stats.fetched_bytes += num_blocks * self.memory().bytes_per_block
        self.stats.num_fetched_tokens += num_blocks * self._block_size
        return num_blocks * self._block_size

    @property
    def _block_size(self) -> int:
        return self.engine.core.scheduler.pool.block_size

    async def _fetch(self, params: KvTransferParams, tokens: List[int], scope: Scope) -> int:
        place = await self.engine.call(partial(self._reserve, params.remote_block_ids or [], tokens, scope))
        if place is None:
            return 0
        table, first = place.table, place.num_known
        num_got = 0
        try:
            prompt = self._prompt(tokens[: len(table) * self._block_size], scope)
            block_ids = (params.remote_block_ids or [])[first : len(table)]
            ask = Ask(params.remote_engine_id or "", self.memory().format, prompt, first, block_ids)
            num_got = await self._receive(params, ask, table[first:])
        finally:
            num_got = await asyncio.shield(self.engine.call(partial(self._settle, place, num_got, tokens, scope)))
        return num_got

    async def _receive(self, params: KvTransferParams, ask: Ask, blocks: list[int]) -> int:
        """Into `blocks`, from the first on; how many of them are filled."""
        reader, writer = await asyncio.open_connection(params.remote_host, params.remote_port, limit=_GROUP_BYTES)
        memory = self.memory()
        try:
            send(writer, ask)
            reply = await receive(reader, Reply)
            if reply.reason:
                log.warning("KV of %s:%s: %s", params.remote_host, params.remote_port, reply.reason)
            for group in _groups(blocks[: reply.num_blocks], memory.bytes_per_block):
                content = bytearray(await reader.readexactly(len(group) * memory.bytes_per_block))
                await _to_the_end(memory.write, group, content)
            return min(reply.num_blocks, len(blocks))
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                ask = await receive(reader, Ask)
                start_s = time.monotonic()
                await self._send_blocks(ask, writer)
                self.stats.sent_s += time.monotonic() - start_s
        except (OSError, EOFError, TimeoutError, ValueError, msgspec.MsgspecError, EngineError) as error:
            self.stats.num_failures += 1
            log.warning("a question for KV could not be answered: %s", error or type(error).__name__)
        finally:
            writer.close()

    async def _send_blocks(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        memory = self.memory()
        if ask.engine_id != self.engine_id:
            return send(writer, Reply(0, "the engine was started anew since"))
        if ask.format != memory.format:
            return send(writer, Reply(0, f"its KV is {memory.format}, ours {ask.format}"))
        blocks = await self.engine.call(partial(self._hold, ask))
        try:
            reason = "" if len(blocks) == len(ask.block_ids) else "some of it is there no more"
            send(writer, Reply(len(blocks), reason))
            for group in _groups(blocks, memory.bytes_per_block):
                writer.write(await asyncio.to_thread(memory.read, group))
                await writer.drain()
                self.stats.sent_bytes += len(group) * memory.bytes_per_block
        finally:
            await asyncio.shield(self.engine.call(partial(self.engine.core.scheduler.pool.release, blocks)))
        return None

    # What follows runs between two steps.

    def _match(self, tokens: List[int], scope: Scope) -> list[Prefix]:
        pool = self.engine.core.scheduler.pool
        hashes = block_hashes(tokens, pool.block_size, adapter=scope.adapter, salt=scope.salt)
        return pool.match(hashes, tokens, scope)

    def _hold(self, ask: Ask) -> list[int]:
        """Those of the blocks, from the first on, that still hold what is asked for; held."""
        pool = self.engine.core.scheduler.pool
        tokens, scope = _tokens(ask.prompt.tokens), self._scope(ask.prompt)
        matched = self._match(tokens, scope) if scope is not None else []
        blocks = []
        for prefix, block in zip(matched[ask.first :], ask.block_ids, strict=False):
            if prefix.block != block:
                break
            blocks.append(block)
        pool.hold(blocks)
        return blocks

    def _scope(self, prompt: Prompt) -> Scope | None:
        """None if its adapter is not here, or is another one."""
        adapters = self.engine.core.scheduler.adapters
        if prompt.adapter is None:
            return Scope(salt=prompt.salt)
        if prompt.adapter not in adapters:
            return None
        adapter = adapters.find(prompt.adapter)
        return Scope(adapter.name, prompt.salt, adapter.load) if adapter.digest == prompt.adapter_digest else None

    def _prompt(self, tokens: List[int], scope: Scope) -> Prompt:
        adapters = self.engine.core.scheduler.adapters
        digest = adapters.find(scope.adapter).digest if scope.adapter is not None else 0
        return Prompt(array("I", tokens).tobytes(), scope.adapter, digest, scope.salt)

    def _reserve(self, block_ids: List[int], tokens: List[int], scope: Scope) -> "_Place | None":
        """None if nothing is to come, or there is no room for it."""
        pool = self.engine.core.scheduler.pool
        known = self._match(tokens, scope)
        num_blocks = min(len(tokens) // pool.block_size, len(block_ids))
        if len(known) >= num_blocks or pool.shortage(known, num_blocks):
            return None
        table = pool.acquire(known, num_blocks)
        # What was evicted for it must be safe before it is written over.
        self.memory().flush()
        return _Place(table, len(known), pool.num_clears)

    def _settle(self, place: "_Place", num_got: int, tokens: List[int], scope: Scope) -> int:
        """Shares the blocks that came, and lets go of all; how many came."""
        pool = self.engine.core.scheduler.pool
        if place.num_clears != pool.num_clears:
            # All KV was forgotten meanwhile, that which came included.
            num_got = 0
        hashes = block_hashes(tokens, pool.block_size, adapter=scope.adapter, salt=scope.salt)
        for index in range(place.num_known, place.num_known + num_got):
            pool.publish(place.table, index, hashes[index], tokens, scope)
        pool.release(place.table)
        return num_got


@dataclass(frozen=True, slots=True)
class _Place:
    """A held table for a prompt: so many of its blocks were known here, the others are to come."""

    table: list[int]
    num_known: int
    num_clears: int


async def _to_the_end(write: Callable[[List[int], bytearray], None], blocks: List[int], content: bytearray) -> None:
    """On a thread. A cancel waits for it: the blocks must not be anybody's again while it writes."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, blocks, content))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await writing
        raise


def _groups(blocks: List[int], bytes_per_block: int) -> Iterator[List[int]]:
    size = max(1, _GROUP_BYTES // bytes_per_block)
    return (blocks[first : first + size] for first in range(0, len(blocks), size))


def _tokens(content: bytes) -> list[int]:
    return array("I", content).tolist()
