"""Our index for others: who registers an engine's KV events may ask which instances hold a prompt. Knows the Mooncake
indexer's convention, which Dynamo's follows; nothing of HTTP.

The hashes of the convention are ours (`pointsman.blockhash`). Registered engines are kept apart from the replicas that
we route to; both are found. Numbers of the answers are tokens.
"""

from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec

from pointsman.blockhash import block_hashes
from router.errors import InvalidRequest
from router.prefix.changes import Change, apply
from router.prefix.feeds import FeedAddress, Feeds
from router.prefix.follower import FeedStatus
from router.prefix.index import BlockIndex
from router.spec import ReplicaSpec

TENANT = "default"
MAX_REGISTERED = 4096
MAX_BLOCK_TOKENS = 65536
_SCHEMES = ("tcp://", "ipc://", "http://", "https://", "grpc://")


class Registration(msgspec.Struct, frozen=True):
    """An engine's KV events. `type` is not needed: all of them are told apart by what they send."""

    endpoint: str
    instance_id: str
    modelname: str | None = None
    model_name: str | None = None
    replay_endpoint: str | None = None
    type: str = ""
    lora_name: str | None = None
    tenant_id: str = TENANT
    block_size: int = 16
    dp_rank: int = 0
    additionalsalt: str | None = None
    additional_salt: str | None = None

    @property
    def model(self) -> str:
        return self.modelname or self.model_name or ""

    @property
    def key(self) -> str:
        return f"{self.instance_id}|{self.tenant_id}|{self.dp_rank}"


class Removal(msgspec.Struct, frozen=True):
    """`dp_rank` None: all ranks of the instance."""

    instance_id: str
    tenant_id: str = TENANT
    dp_rank: int | None = None


class Query(msgspec.Struct, frozen=True):
    """By tokens, or by the hashes of its whole blocks."""

    block_size: int
    model: str | None = None
    model_name: str | None = None
    lora_name: str | None = None
    tenant_id: str = TENANT
    instance_id: str | None = None
    cache_salt: str | None = None
    token_ids: Sequence[int] | None = None
    seq_hashes: Sequence[int] | None = None
    block_hash: Sequence[int] | None = None

    @property
    def wanted_model(self) -> str:
        return self.model or self.model_name or ""


@dataclass(frozen=True, slots=True)
class Instance:
    """One that may hold what is asked for. `id` is its name in an index."""

    id: str
    name: str
    model: str
    tenant: str
    block_size: int
    rank: int = 0


Depths = tuple[Mapping[str, int], Mapping[str, int]]
Match = Callable[[Sequence[int]], Awaitable[Depths]]


@dataclass(eq=False, slots=True)
class Indexer:
    """`match(blocks)`: leading blocks that the replicas that we route to hold, by their ids, and of these the ones in
    device memory; `replicas()` gives those replicas."""

    match: Match
    replicas: Callable[[], Sequence[Instance]]
    max_bytes: int
    feeds: Feeds = field(init=False)
    _guests: BlockIndex = field(init=False)
    _registered: dict[str, Registration] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._guests = BlockIndex(self.max_bytes)
        self.feeds = Feeds(self._tell, _ignore)

    @classmethod
    def over(cls, index: BlockIndex, replicas: Callable[[], Sequence[Instance]], max_bytes: int) -> Self:
        """Of an index in this process."""

        async def match(chain: Sequence[int]) -> Depths:
            return match_in(index, chain)

        return cls(match, replicas, max_bytes)

    def register(self, asked: Registration) -> Mapping[str, object]:
        """Listen to these events from now on. Raises InvalidRequest that names the field."""
        self._check(asked)
        if self._registered.get(asked.key) != asked:
            self._drop(asked.key)
        self._registered[asked.key] = asked
        spec = ReplicaSpec(asked.endpoint, kv=asked.endpoint, replay=asked.replay_endpoint)
        salt = asked.additionalsalt or asked.additional_salt or None
        address = FeedAddress(asked.endpoint, asked.replay_endpoint, None, asked.lora_name or None, salt)
        self.feeds.follow(asked.key, spec, address, asked.block_size)
        return {"status": "registered successfully", "instance_id": asked.instance_id}

    def unregister(self, asked: Removal) -> Mapping[str, object]:
        """Forget it. Raises InvalidRequest where there is no such instance."""
        gone = [
            key
            for key, each in self._registered.items()
            if (each.instance_id, each.tenant_id) == (asked.instance_id, asked.tenant_id)
            and asked.dp_rank in (None, each.dp_rank)
        ]
        if not gone:
            raise InvalidRequest(f"There is no instance `{asked.instance_id}` to unregister.", param="instance_id")
        for key in gone:
            self._drop(key)
        return {"status": "unregistered successfully", "removed_instances": gone}

    async def query(self, asked: Query) -> Mapping[str, object]:
        """Who holds how much. Raises InvalidRequest that names the field."""
        if not 1 <= asked.block_size <= MAX_BLOCK_TOKENS:
            raise InvalidRequest(f"`block_size` must be from 1 to {MAX_BLOCK_TOKENS}.", param="block_size")
        chain = _chain(asked)
        guests = [_instance(key, each) for key, each in self._registered.items()]
        found: dict[str, dict[str, object]] = {}
        held = [(await self.match(chain), self.replicas()), (match_in(self._guests, chain), guests)]
        for (matches, on_device), instances in held:
            for each in instances:
                if _is_asked(each, asked):
                    depth, device = (
                        matches.get(each.id, 0) * each.block_size,
                        on_device.get(each.id, 0) * each.block_size,
                    )
                    _add(found.setdefault(each.name, _nothing()), each.rank, depth, device)
        return {asked.tenant_id: found}

    def _check(self, asked: Registration) -> None:
        if not asked.model:
            raise InvalidRequest("`modelname` is missing.", param="modelname")
        for name in ("endpoint", "replay_endpoint"):
            value = getattr(asked, name)
            if value is not None and not value.startswith(_SCHEMES):
                raise InvalidRequest(f"`{name}` must be a URL such as tcp://host:5557.", param=name)
        if not 1 <= asked.block_size <= MAX_BLOCK_TOKENS:
            raise InvalidRequest(f"`block_size` must be from 1 to {MAX_BLOCK_TOKENS}.", param="block_size")
        if len(self._registered) >= MAX_REGISTERED and asked.key not in self._registered:
            raise InvalidRequest(f"More than {MAX_REGISTERED} instances cannot be registered.", param="instance_id")

    def _drop(self, key: str) -> None:
        if self._registered.pop(key, None) is not None:
            self.feeds.leave(key)
            self._guests.remove(key)

    def _tell(self, key: str, changes: Sequence[Change]) -> None:
        if key in self._registered:
            for change in changes:
                apply(self._guests, key, change)

    def __repr__(self) -> str:
        return f"<Indexer of {len(self._registered)} registered, {self._guests!r}>"


def match_in(index: BlockIndex, chain: Sequence[int]) -> Depths:
    matches = index.match(chain)
    return matches, index.match_device(chain, matches)


def instances_of(rows: Iterable[Mapping[str, object]]) -> list[Instance]:
    """Of the replica table's rows. A replica that has not said what it serves holds nothing."""
    return [
        Instance(str(row["id"]), str(row["id"]), str(models[0]), TENANT, size)
        for row in rows
        if isinstance(models := row["models"], list) and models and isinstance(size := row["block_size"], int)
    ]


def _chain(asked: Query) -> Sequence[int]:
    hashes = asked.seq_hashes if asked.seq_hashes is not None else asked.block_hash
    if hashes is not None:
        if not all(0 <= each < 2**64 for each in hashes):
            raise InvalidRequest("`seq_hashes` must be numbers of 64 bits.", param="seq_hashes")
        return hashes
    if asked.token_ids is None:
        raise InvalidRequest("`token_ids` or `seq_hashes` is needed.", param="token_ids")
    try:
        ids = array("I", asked.token_ids)
    except (OverflowError, TypeError):
        raise InvalidRequest("`token_ids` must be numbers of 0..2**32-1.", param="token_ids") from None
    return block_hashes(ids, asked.block_size, adapter=asked.lora_name or None, salt=asked.cache_salt or None)


def _instance(key: str, each: Registration) -> Instance:
    return Instance(key, each.instance_id, each.model, each.tenant_id, each.block_size, each.dp_rank)


def _is_asked(each: Instance, asked: Query) -> bool:
    return (
        each.tenant == asked.tenant_id
        and each.block_size == asked.block_size
        and asked.wanted_model in ("", each.model)
        and asked.instance_id in (None, each.name)
    )


def _nothing() -> dict[str, object]:
    return {"longest_matched": 0, "GPU": 0, "CPU": 0, "DISK": 0, "DP": {}}


def _add(found: dict[str, object], rank: int, depth: int, device: int) -> None:
    """What one rank holds; of the prefix, the part behind the device's comes from the host."""
    ranks = found["DP"]
    assert isinstance(ranks, dict)
    ranks[str(rank)] = depth
    for name, num_tokens in (("longest_matched", depth), ("GPU", device), ("CPU", depth if depth > device else 0)):
        before = found[name]
        assert isinstance(before, int)
        found[name] = max(before, num_tokens)


def _ignore(_: str, __: FeedStatus) -> None:
    pass
