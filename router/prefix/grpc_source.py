"""KV events of our own engine over gRPC: a snapshot, then each change, in our own hashes. Knows the contract's
messages; nothing of tokens. A gap, another life of the process or a cut stream mean one thing: subscribe again."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc

from pointsman.v1 import engine_pb2, engine_pb2_grpc
from router.prefix.changes import Change, Emptied, gone, held
from router.prefix.follower import Follower
from router.prefix.ledger import Distrust

RETRY_S, MAX_RETRY_S = 0.2, 5.0
MAX_MESSAGE_BYTES = 64 * 2**20
_OPTIONS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),)

log = logging.getLogger(__name__)


class _Again(Exception):
    """The stream cannot be gone on with."""


@dataclass(eq=False, slots=True)
class GrpcSource:
    """`target` is host:port. Its blocks must be of the size that we hash in, else they say nothing to us: `follow` ends
    with Distrust."""

    target: str
    block_size: int
    _call: "grpc.aio.UnaryStreamCall[engine_pb2.EventsRequest, engine_pb2.KvEvent] | None" = None
    _is_whole: bool = field(default=False, init=False)

    def begin_anew(self) -> None:
        """The replica was lost: another stream shall say what it holds."""
        if self._call is not None:
            self._call.cancel()

    async def follow(self, follower: Follower) -> None:
        pause_s = RETRY_S
        while True:
            follower.reset("it begins")
            try:
                async with grpc.aio.insecure_channel(self.target, options=_OPTIONS) as channel:
                    await self._hear(engine_pb2_grpc.EngineStub(channel), follower)
                reason = "the stream ended"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except asyncio.CancelledError:
                # Cancelled by `begin_anew`, and not from outside?
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                reason = "the replica was lost"
            except _Again as again:
                reason = str(again)
            if self._is_whole:
                pause_s = RETRY_S
            follower.lose(reason)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)

    async def _hear(self, stub: engine_pb2_grpc.EngineStub, follower: Follower) -> None:
        self._is_whole = False
        call = self._call = stub.Events(engine_pb2.EventsRequest())
        last: int | None = None
        boot_id = ""
        try:
            async for message in call:
                if last is not None and (message.sequence != last + 1 or message.boot_id != boot_id):
                    raise _Again("messages were lost, or the engine began anew")
                last, boot_id = message.sequence, message.boot_id
                self._take(message, follower)
        finally:
            call.cancel()

    def _take(self, message: engine_pb2.KvEvent, follower: Follower) -> None:
        match message.WhichOneof("event"):
            case "snapshot":
                size = message.snapshot.block_size
                if size != self.block_size:
                    follower.distrust(f"its blocks have {size} tokens, ours {self.block_size}")
                    raise Distrust(follower.status.reason)
                follower.tell([change for chain in message.snapshot.chains for change in _stored(chain)])
                if message.snapshot.is_last:
                    self._is_whole = True
                    follower.synced(is_whole=True)
            case "stored":
                follower.tell(list(_stored(message.stored)))
            case "removed":
                is_host = message.removed.medium == engine_pb2.MEDIUM_HOST
                follower.tell([gone(message.removed.block_hashes, is_host=is_host)])
            case "cleared":
                follower.tell([Emptied()])
        follower.num_batches += 1

    def __repr__(self) -> str:
        return f"<GrpcSource {self.target} {'whole' if self._is_whole else 'not whole'}>"


def _stored(chain: engine_pb2.KvStored) -> Iterator[Change]:
    if chain.block_hashes:
        parent = chain.parent_hash if chain.HasField("parent_hash") else None
        yield held(parent, chain.block_hashes, is_host=chain.medium == engine_pb2.MEDIUM_HOST)
