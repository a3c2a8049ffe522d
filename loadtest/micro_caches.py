"""`python -m loadtest.micro events` and `index`: what it costs to know what replicas hold.

Steps the router's synchronous cores, and for the live part its ZMQ source against a publisher in another process. Knows
nothing of requests. CPU time; each row as a ratio to one of the same run.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import random
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median, quantiles
from time import perf_counter, process_time, thread_time
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio
from rich.console import Console
from rich.table import Table

from pointsman.blockhash import block_hashes
from router.prefix.caches import Caches
from router.prefix.changes import Change, apply
from router.prefix.events import decode
from router.prefix.follower import FeedStatus, Follower
from router.prefix.index import BlockIndex
from router.prefix.ledger import Ledger
from router.prefix.zmq_source import ZmqSource
from router.workers import frames
from router.workers.intake import SLICE_S, Intake

BLOCK_TOKENS = 16
BLOCKS_A_BATCH = 32
NUM_BATCHES = 4000
BLOCKS_A_SECOND = 100_000
LIVE_S = 5.0
NUM_REPLICAS = 64
INDEX_BYTES = 2**30
# Of the index: as in a table of structures that are known to work, a million blocks and prompts of 128.
NUM_INDEX_BLOCKS = 1_000_000
PROMPT_BLOCKS, KNOWN_SHARE = 128, 0.75

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    ratio: float | None = None


def measure_events(num_batches: int = NUM_BATCHES, live_s: float = LIVE_S) -> list[Row]:
    payloads, thresholds = list(_payloads(num_batches)), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # as a router sets it
    try:
        return _measure_cores(payloads) + asyncio.run(_measure_ways(payloads)) + asyncio.run(_listen(live_s))
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def measure_index(num_blocks: int = NUM_INDEX_BLOCKS) -> list[Row]:
    rng, index = random.Random(1), BlockIndex(INDEX_BYTES)
    tracemalloc.start()
    chains = [_chain(rng) for _ in range(64)]
    before, _ = tracemalloc.get_traced_memory()
    while index.total_blocks < num_blocks:
        chain = _grown(rng, rng.choice(chains))
        if len(chains) < 2000:
            chains.append(chain)
        else:
            chains[rng.randrange(len(chains))] = chain
        index.store(f"r{rng.randrange(NUM_REPLICAS)}", None, chain)
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = sum(sys.getsizeof(chain) for chain in chains)
    rows = [
        Row("memory, keys included", (traced - before - kept) / index.total_blocks, f"bytes a block of {num_blocks:,}"),
        Row("reckoned against its cap", index.num_bytes / index.total_blocks, "bytes a block"),
    ]
    return rows + _measure_prompts(rng, index, chains)


def print_rows(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for header in ("value", "unit", "ratio"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(row.name, f"{row.value:,.2f}", row.unit, "" if row.ratio is None else f"{row.ratio:.2f}")
    Console(width=110).print(table)


def _measure_cores(payloads: Sequence[bytes]) -> list[Row]:
    num_blocks = len(payloads) * BLOCKS_A_BATCH
    plain_us = _cpu_us(lambda: _each(payloads, msgspec.msgpack.decode)) / num_blocks
    hashed_us = _cpu_us(lambda: _each(payloads, _hash)) / num_blocks
    rows = [Row("msgpack to objects", plain_us, "µs a block", 1.0)]
    rows += [Row("and hashed, no more", hashed_us, "µs a block", hashed_us / plain_us)]
    changes: list[Sequence[Change]] = []
    ledger, index = Ledger(BLOCK_TOKENS), BlockIndex(INDEX_BYTES)
    told_us = _cpu_us(lambda: changes.extend(ledger.apply(decode(each).events) for each in payloads)) / num_blocks
    rows.append(Row("events to changes (decode, re-hash, names)", told_us, "µs a block", told_us / plain_us))
    index_us = _cpu_us(lambda: _tell(index, changes)) / num_blocks
    rows.append(Row("changes to the index", index_us, "µs a block", index_us / plain_us))
    return rows + _measure_mirror(changes, plain_us, num_blocks)


def _measure_prompts(rng: random.Random, index: BlockIndex, chains: Sequence[Sequence[int]]) -> list[Row]:
    prompts = [_grown(rng, rng.choice(chains)) for _ in range(3000)]
    plain = {block: run for shard in index._tree.runs.shards for block, run in shard.items()}
    walk_us = _cpu_us(lambda: [_walk(plain, prompt) for prompt in prompts]) / len(prompts)
    match_us = _cpu_us(lambda: [index.match(prompt) for prompt in prompts]) / len(prompts)
    insert_us = _cpu_us(lambda: _each(prompts, lambda prompt: index.insert("r1", prompt))) / len(prompts)
    drop_us = _cpu_us(lambda: _each(prompts, lambda prompt: index.drop("r1", prompt[-32:]))) / len(prompts)
    gone_us = _cpu_us(lambda: index.remove("r3"))
    return [
        Row("a dict asked for each block of a prompt", walk_us, "µs a prompt", 1.0),
        Row("match", match_us, "µs a prompt", match_us / walk_us),
        Row("insert a guess", insert_us, "µs a prompt", insert_us / walk_us),
        Row("drop 32 blocks", drop_us, "µs", drop_us / walk_us),
        Row("remove a replica", gone_us, "µs", gone_us / walk_us),
    ]


def _tell(index: BlockIndex, batches: Sequence[Sequence[Change]]) -> None:
    for changes in batches:
        for change in changes:
            apply(index, "r", change)


def _each(items: Sequence[Item], act: Callable[[Item], object]) -> None:
    for item in items:
        act(item)


def _walk(plain: Mapping[int, object], prompt: Sequence[int]) -> int:
    return sum(1 for block in prompt if block in plain)


def _measure_mirror(changes: Sequence[Sequence[Change]], plain_us: float, num_blocks: int) -> list[Row]:
    """Frames as the feed sends them, to a worker's index by slices of a turn."""
    packed = [frames.pack(frames.Told([("r", batch)])) for batch in changes]
    intake = Intake(Caches(BlockIndex(INDEX_BYTES), lambda _: True, listens=False), lambda _: True, thread_time)
    begin = process_time()
    for frame in packed:
        message = frames.from_feed.decode(frame[frames.LENGTH_BYTES :])
        assert isinstance(message, frames.Told)
        for id, told in message.changes:
            intake._waiting.extend((id, change) for change in told)
    decoded = process_time()
    turns = []
    while intake._waiting:
        start = thread_time()
        intake.take_some()
        turns.append((thread_time() - start) * 1e3)
    taken_us, decode_us = (process_time() - decoded) * 1e6 / num_blocks, (decoded - begin) * 1e6 / num_blocks
    return [
        Row("a worker: frames to changes", decode_us, "µs a block", decode_us / plain_us),
        Row("a worker: changes to its index", taken_us, "µs a block", taken_us / plain_us),
        Row("a worker: a turn, 9 of 10", quantiles(turns, n=10)[8], "ms"),
        Row("a worker: the longest turn", max(turns), "ms"),
        Row("a worker: turns that it takes a second", BLOCKS_A_SECOND * taken_us / 1e6 / SLICE_S, "turns"),
    ]


async def _measure_ways(payloads: Sequence[bytes]) -> list[Row]:
    """Of taking batches off a ZMQ socket, nothing else done: why the source drains it itself, in slices."""
    drained_us = await _receive(payloads, _drain)
    rows = [Row("off the socket: drained when it says so", drained_us, "µs a batch", 1.0)]
    for name, receive in (("asyncio, one future a batch", _await_each), ("a thread that wakes the loop", _from_thread)):
        received_us = await _receive(payloads, receive)
        rows.append(Row(f"off the socket: {name}", received_us, "µs a batch", received_us / drained_us))
    return rows


Receive = Callable[[zmq.asyncio.Context, str, int], Coroutine[Any, Any, None]]


async def _receive(payloads: Sequence[bytes], receive: Receive) -> float:
    """CPU of this process, less that of the sender's thread."""
    context = zmq.asyncio.Context()
    address, sent = "inproc://ways", list[float]()

    def send() -> None:
        begin = thread_time()
        with contextlib.closing(zmq.Context(context).socket(zmq.PUSH)) as sender:
            sender.connect(address)
            for payload in payloads:
                sender.send_multipart([b"", b"number..", payload])
        sent.append(thread_time() - begin)

    begin = process_time()
    sender = asyncio.create_task(asyncio.to_thread(send))
    await receive(context, address, len(payloads))
    await sender
    spent = process_time() - begin - sent[0]
    context.destroy(linger=0)
    return spent * 1e6 / len(payloads)


async def _drain(context: zmq.asyncio.Context, address: str, num_batches: int) -> None:
    with contextlib.closing(context.socket(zmq.PULL)) as live:
        live.bind(address)
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(live.underlying)
        while num_batches:
            await live.poll()
            with contextlib.suppress(zmq.Again):
                while num_batches:
                    plain.recv_multipart(zmq.NOBLOCK)
                    num_batches -= 1


async def _await_each(context: zmq.asyncio.Context, address: str, num_batches: int) -> None:
    with contextlib.closing(context.socket(zmq.PULL)) as live:
        live.bind(address)
        for _ in range(num_batches):
            await live.recv_multipart()


async def _from_thread(context: zmq.asyncio.Context, address: str, num_batches: int) -> None:
    loop, num_heard, all_heard = asyncio.get_running_loop(), count(1), asyncio.Event()

    def hear(_: list[bytes]) -> None:
        if next(num_heard) == num_batches:
            all_heard.set()

    def receive() -> None:
        with contextlib.closing(zmq.Context(context).socket(zmq.PULL)) as live:
            live.bind(address)
            for _ in range(num_batches):
                loop.call_soon_threadsafe(hear, live.recv_multipart())

    receiving = asyncio.create_task(asyncio.to_thread(receive))
    await all_heard.wait()
    await receiving


async def _listen(live_s: float) -> list[Row]:
    """A publisher in another process sends blocks at their pace; here they are taken in as the feed process does."""
    context = zmq.asyncio.Context()
    address = f"tcp://127.0.0.1:{_free_port(context)}"
    ended: list[float] = []
    index = BlockIndex(INDEX_BYTES)

    def tell(changes: Sequence[Change]) -> None:
        _tell(index, [changes])
        frames.pack(frames.Told([("r", changes)]))

    follower = Follower(Ledger(BLOCK_TOKENS), tell, _ignore)
    publisher = multiprocessing.get_context("spawn").Process(target=_publish, args=(address, live_s))
    publisher.start()
    task = asyncio.create_task(ZmqSource(address, None, context).follow(follower))
    try:
        while not follower.num_batches:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        cpu, begun = process_time(), perf_counter()
        while publisher.is_alive():
            start = perf_counter()
            await asyncio.sleep(0)
            ended.append((perf_counter() - start) * 1e3)
            await asyncio.sleep(0.005)
        seconds, cpu = perf_counter() - begun, process_time() - cpu
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        publisher.join()
        context.destroy(linger=0)
    num_blocks = follower.ledger.tally.num_stored
    return [
        Row("live: blocks taken in", num_blocks / live_s, "a second"),
        Row("live: of those sent", 100 * num_blocks / (BLOCKS_A_SECOND * live_s), "%"),
        Row("live: CPU of the feed process", 100 * cpu / seconds, "% of a core"),
        Row("live: what another task waits for its turn, median", median(ended), "ms"),
        Row("live: resyncs after the first", follower.num_resyncs - 1, ""),
    ]


def _publish(address: str, live_s: float) -> None:
    """The other process: batches at an even pace."""
    payloads = list(_payloads(int(BLOCKS_A_SECOND * live_s) // BLOCKS_A_BATCH))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with contextlib.closing(context.socket(zmq.XPUB)) as publisher:
        publisher.setsockopt(zmq.SNDHWM, 100_000)
        publisher.bind(address)
        publisher.recv()  # somebody listens
        begun, number = time.monotonic(), 0
        while number < len(payloads):
            due = min(len(payloads), int((time.monotonic() - begun) * BLOCKS_A_SECOND / BLOCKS_A_BATCH))
            for at in range(number, due):
                publisher.send_multipart([b"", at.to_bytes(8, "big"), payloads[at]])
            number = due
            time.sleep(0.001)
        time.sleep(0.5)
    context.term()


def _payloads(num_batches: int) -> Iterator[bytes]:
    """Prompts of 32 blocks, as vLLM tells of them: digests of 32 bytes, events as maps in a list."""
    rng, encoder = random.Random(3), msgspec.msgpack.Encoder()
    for _ in range(num_batches):
        event = {
            "type": "BlockStored",
            "block_hashes": [rng.randbytes(32) for _ in range(BLOCKS_A_BATCH)],
            "parent_block_hash": None,
            "token_ids": [rng.randrange(50_000) for _ in range(BLOCKS_A_BATCH * BLOCK_TOKENS)],
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        yield encoder.encode([0.0, [event], 0])


def _hash(payload: bytes) -> list[int]:
    return block_hashes(array("I", msgspec.msgpack.decode(payload)[1][0]["token_ids"]), BLOCK_TOKENS)


def _chain(rng: random.Random) -> "array[int]":
    return array("Q", [rng.getrandbits(64) for _ in range(PROMPT_BLOCKS)])


def _grown(rng: random.Random, chain: Sequence[int]) -> "array[int]":
    """A prompt of which three quarters are known."""
    num_known = int(PROMPT_BLOCKS * KNOWN_SHARE)
    return array("Q", chain[:num_known]) + _chain(rng)[: PROMPT_BLOCKS - num_known]


def _free_port(context: "zmq.asyncio.Context") -> int:
    with contextlib.closing(context.socket(zmq.PUB)) as probe:
        return probe.bind_to_random_port("tcp://127.0.0.1")


def _cpu_us(work: Callable[[], object]) -> float:
    begin = process_time()
    work()
    return (process_time() - begin) * 1e6


def _ignore(_: FeedStatus) -> None:
    pass
