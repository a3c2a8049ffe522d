"""The feeds of all replicas that tell us what they hold. Knows their addresses and who follows whom; nothing of what is
said, and never waits for any of them."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union
from urllib.parse import urlsplit

import zmq.asyncio

from router.prefix.changes import Change
from router.prefix.follower import FeedState, FeedStatus, Follower
from router.prefix.ledger import Distrust, Ledger
from router.prefix.poll_source import PollSource
from router.prefix.zmq_source import ZmqSource
from router.spec import ReplicaSpec

if TYPE_CHECKING:
    from router.prefix.grpc_source import GrpcSource

# A feed that said what cannot be true is listened to again after so long.
DISTRUST_S = 60.0
# By vLLM's and SGLang's convention, and TensorRT-LLM's.
EVENTS_PORT, REPLAY_PORT = 5557, 5558
POLLED_PATH = "/kv_cache_events"
POLLED_ENGINE = "tensorrt-llm"

Source = Union[ZmqSource, PollSource, "GrpcSource"]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedAddress:
    """`events` is a URL whose scheme says how to listen: tcp and ipc are ZMQ, http is polled, grpc is our engine's.
    `adapter` and `salt` are of all blocks that it tells of without their own."""

    events: str
    replay: str | None = None
    rank: int | None = None
    adapter: str | None = None
    salt: str | None = None

    @classmethod
    def of(cls, spec: ReplicaSpec, engine: str | None) -> "FeedAddress | None":
        """What the spec says; `auto` is the convention of this kind of engine. None where there is no feed."""
        if spec.kv is None:
            return None
        if spec.kv != "auto":
            return cls(spec.kv, spec.replay, spec.rank)
        if spec.url.startswith("grpc:"):
            return cls(spec.url, None, spec.rank)
        if engine == POLLED_ENGINE:
            return cls(spec.url + POLLED_PATH, None, spec.rank)
        host, rank = urlsplit(spec.url).hostname or "", spec.rank or 0
        host = f"[{host}]" if ":" in host else host
        return cls(f"tcp://{host}:{EVENTS_PORT + rank}", f"tcp://{host}:{REPLAY_PORT + rank}", spec.rank)


@dataclass(eq=False, slots=True)
class _Followed:
    address: FeedAddress
    block_size: int
    spec: ReplicaSpec
    task: asyncio.Task[None] | None = None
    source: Source | None = None
    follower: Follower | None = None


@dataclass(eq=False, slots=True)
class Feeds:
    """`tell(replica_id, changes)`: in their order. `on_status(replica_id, status)`: whenever it changes."""

    tell: Callable[[str, Sequence[Change]], None]
    on_status: Callable[[str, FeedStatus], None]
    _followed: dict[str, _Followed] = field(default_factory=dict, init=False)
    _group: asyncio.TaskGroup | None = field(default=None, init=False)
    _context: "zmq.asyncio.Context | None" = field(default=None, init=False)

    async def run(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for id, followed in self._followed.items():
                    self._start(id, followed)
                await asyncio.Event().wait()
            finally:
                self._group = None
                self._stop_all()

    def follow(self, replica_id: str, spec: ReplicaSpec, address: FeedAddress | None, block_size: int) -> None:
        """Listen to this replica, whose prompts are hashed in blocks of so many tokens. Told again of the same, it goes
        on, or asks anew where something was missed; None: it has no feed."""
        before = self._followed.get(replica_id)
        if before is not None and (before.address, before.block_size) == (address, block_size):
            if self.status(replica_id).state in (FeedState.LATE, FeedState.ABSENT) and before.source is not None:
                before.source.begin_anew()
            return
        self.leave(replica_id)
        if address is not None:
            followed = self._followed[replica_id] = _Followed(address, block_size, spec)
            if self._group is not None:
                self._start(replica_id, followed)

    def leave(self, replica_id: str) -> None:
        """It is gone."""
        followed = self._followed.pop(replica_id, None)
        if followed is not None:
            if followed.task is not None:
                followed.task.cancel()
            self.on_status(replica_id, FeedStatus())

    def lost(self, replica_id: str) -> None:
        """It failed: what it holds is to be asked for anew once it is back."""
        followed = self._followed.get(replica_id)
        if followed is not None and followed.source is not None:
            followed.source.begin_anew()

    def keep(self, replica_ids: Collection[str]) -> None:
        """All others are gone."""
        for id in [id for id in self._followed if id not in replica_ids]:
            self.leave(id)

    def status(self, replica_id: str) -> FeedStatus:
        followed = self._followed.get(replica_id)
        if followed is None:
            return FeedStatus()
        return followed.follower.status if followed.follower is not None else FeedStatus(FeedState.SYNCING)

    def followers(self) -> Mapping[str, Follower]:
        """Who follows which replica."""
        return {id: followed.follower for id, followed in self._followed.items() if followed.follower is not None}

    def _start(self, id: str, followed: _Followed) -> None:
        assert self._group is not None  # only called while it runs
        followed.task = self._group.create_task(self._listen(id, followed), name=f"KV events of {id}")

    async def _listen(self, id: str, followed: _Followed) -> None:
        while True:
            follower = followed.follower = Follower(
                Ledger(followed.block_size, followed.address.adapter, followed.address.salt),
                tell=lambda changes: self.tell(id, changes),
                on_status=lambda status: self._hear_status(id, followed, status),
                rank=followed.address.rank,
            )
            source = followed.source = self._open(followed)
            try:
                await source.follow(follower)
            except Distrust as distrust:
                log.warning("the KV events of %s are not believed: %s", id, distrust)
            except Exception:
                # What one replica says must not end the listening to the others.
                log.exception("cannot follow the KV events of %s", id)
                follower.distrust("we failed to follow them")
            await asyncio.sleep(DISTRUST_S)

    def _hear_status(self, id: str, followed: _Followed, status: FeedStatus) -> None:
        if self._followed.get(id) is followed:
            reason = f": {status.reason}" if status.reason else ""
            log.info("KV events of %s: %s%s", id, status.state, reason)
            self.on_status(id, status)

    def _open(self, followed: _Followed) -> Source:
        address, spec = followed.address, followed.spec
        scheme, _, rest = address.events.partition("://")
        if scheme in ("http", "https"):
            return PollSource(address.events, spec.api_key)
        if scheme == "grpc":
            from router.prefix.grpc_source import GrpcSource  # not before it is wanted: gRPC takes 40 MB

            return GrpcSource(rest, followed.block_size)
        if self._context is None:
            self._context = zmq.asyncio.Context()
        return ZmqSource(address.events, address.replay, self._context)

    def _stop_all(self) -> None:
        for followed in self._followed.values():
            if followed.task is not None:
                followed.task.cancel()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def __repr__(self) -> str:
        return f"<Feeds of {len(self._followed)} replicas>"
