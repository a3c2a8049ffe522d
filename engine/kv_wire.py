"""The frames in which engines ask each other for KV, and the parameters that clients and routers carry between them.

Knows msgpack and streams. Must not know blocks, the cache, or when to ask. A frame is a msgpack map behind its length
(u32, big-endian).
"""

import asyncio
from typing import TypeVar

import msgspec
from msgspec import Struct

_MOST_FRAME_BYTES = 64 << 20
_Frame = TypeVar("_Frame", bound=Struct)


class KvTransferParams(Struct, frozen=True, kw_only=True):
    """vLLM's `kv_transfer_params`. With `do_remote_decode` the KV is kept to be fetched; with `do_remote_prefill` it is
    to be fetched as the other fields say."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_block_ids: list[int] | None = None
    remote_host: str | None = None
    remote_port: int | None = None


class Prompt(Struct, frozen=True):
    """Whose KV it is about. `tokens` are little-endian u32; `adapter_digest` is of the adapter's weights."""

    tokens: bytes
    adapter: str | None = None
    adapter_digest: int = 0
    salt: str | None = None


class Ask(Struct, frozen=True):
    """For the blocks `first` and later of the prompt. `format` names model, block size and number format."""

    engine_id: str
    format: str
    prompt: Prompt
    first: int
    block_ids: list[int]


class Reply(Struct, frozen=True):
    """So many of the blocks follow; `reason` says why not all."""

    num_blocks: int
    reason: str = ""


def send(writer: asyncio.StreamWriter, frame: Struct) -> None:
    content = msgspec.msgpack.encode(frame)
    writer.write(len(content).to_bytes(4, "big") + content)


async def receive(reader: asyncio.StreamReader, shape: type[_Frame]) -> _Frame:
    num_bytes = int.from_bytes(await reader.readexactly(4), "big")
    if num_bytes > _MOST_FRAME_BYTES:
        raise ValueError(f"a frame of {num_bytes} bytes")
    return msgspec.msgpack.decode(await reader.readexactly(num_bytes), type=shape)
