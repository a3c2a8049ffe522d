"""KV events as engines send them. Knows the encodings of vLLM, SGLang and TensorRT-LLM; nothing of our hashes, of
sockets or of what came before.

A batch, an event and a block hash have each been sent as more than one type, and fields are added with each release: at
each level a list or a map is taken, and what is not known is skipped. Only what would leave us believing in blocks that
are gone makes a batch unusable.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

# Fields in the order of the list encoding; SGLang has others from the eighth on, told apart by their types.
STORED_FIELDS = (
    "type block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx"
    " kv_cache_spec_kind kv_cache_spec_sliding_window locality"
).split()
REMOVED_FIELDS = "type block_hashes medium group_idx locality".split()
TIER_FIELDS = "type medium".split()
_LOW_64_BITS = 2**64 - 1
_DEVICE_MEDIA = frozenset({"gpu", "device", "hbm", "npu", "tpu"})
_HOST_MEDIA = ("cpu", "host", "dram", "pinned")


class BadEvents(ValueError):
    """A batch that cannot be understood: some blocks may be gone without our knowing."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that a replica holds now, each behind the one before; `parent` is before the first, None at a beginning.

    Hashes are the engine's own, of 64 bits. `is_host` is None for memory that is too far away to count. `extra_keys`:
    what each block has beside its tokens, adapter and salt left out.
    """

    hashes: Sequence[int]
    parent: int | None
    token_ids: Sequence[int]
    block_size: int
    is_host: bool | None = False
    adapter: str | None = None
    salt: str | None = None
    extra_keys: Sequence[tuple[bytes, ...]] | None = None
    group: int | None = None
    is_windowed: bool = False


class Removed(msgspec.Struct, frozen=True, gc=False):
    hashes: Sequence[int]
    is_host: bool | None = False
    group: int | None = None


class Moved(msgspec.Struct, frozen=True, gc=False):
    """A block went from one memory to another."""

    hash: int
    is_host: bool


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """Nothing is held any more; in one memory, where `is_host` says in which."""

    is_host: bool | None = None


Event = Stored | Removed | Moved | Cleared


class Batch(msgspec.Struct, frozen=True, gc=False):
    """`rank` is the data-parallel rank that sent it, where it says so; `num_skipped` events were of no known kind, or
    stored something that we cannot make out."""

    events: Sequence[Event]
    rank: int | None = None
    num_skipped: int = 0


def decode(payload: bytes) -> Batch:
    """One msgpack payload, as vLLM's and SGLang's ZMQ publishers send it. Raises BadEvents."""
    try:
        outer = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEvents(f"no msgpack: {error}") from error
    if isinstance(outer, dict):
        raw, rank = outer.get("events"), outer.get("data_parallel_rank", outer.get("attn_dp_rank"))
    elif isinstance(outer, list) and len(outer) > 1:
        raw, rank = outer[1], outer[2] if len(outer) > 2 else None
    else:
        raise BadEvents(f"a batch must be a list or a map, not {type(outer).__name__}")
    if not isinstance(raw, list):
        raise BadEvents("a batch without a list of events")
    events = [event for each in raw if (event := _event(each)) is not None]
    return Batch(events, rank if type(rank) is int else None, len(raw) - len(events))


def is_host(medium: object) -> bool | None:
    """Is this name of a memory the host's? None for what is further away."""
    if medium is None or not isinstance(medium, str) or medium.lower() in _DEVICE_MEDIA:
        return False
    return True if medium.lower().startswith(_HOST_MEDIA) else None


def hash_of(value: object) -> int:
    """The low 64 bits: of a digest its last bytes, as vLLM makes ints of them itself. Raises TypeError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _LOW_64_BITS
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise TypeError(f"a block hash must be a number or bytes, not {type(value).__name__}")


def _event(raw: Any) -> Event | None:
    if isinstance(raw, dict) and "event_type" in raw and "type" not in raw:
        raw = _of_standard(raw)
    tag = raw.get("type") if isinstance(raw, dict) else raw[0] if isinstance(raw, list) and raw else None
    match tag:
        case "BlockStored":
            try:
                return _stored(_named(raw, STORED_FIELDS))
            except (KeyError, TypeError, ValueError):
                return None  # we know less than we could, and nothing wrong
        case "BlockRemoved":
            return _removed(_named(raw, REMOVED_FIELDS))
        case "AllBlocksCleared":
            return Cleared()
        case "TierBlocksCleared":
            where = is_host(_named(raw, TIER_FIELDS).get("medium"))
            return Cleared(where) if where is not None else None
        case _:
            return None


def _of_standard(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event in the words that Mooncake proposes for all engines, in vLLM's."""
    names = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}
    event = {**raw, "type": names.get(str(raw["event_type"])), "block_hashes": raw.get("seq_hashes")}
    parent = raw.get("parent_hash")
    if parent is None and raw.get("base_block_idx"):
        event.pop("token_ids", None)  # somewhere in a prompt, and nobody says behind which block
    return {**event, "parent_block_hash": parent}


def _named(raw: Any, names: Sequence[str]) -> Mapping[str, Any]:
    return raw if isinstance(raw, dict) else dict(zip(names, raw, strict=False))


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes = [hash_of(each) for each in fields["block_hashes"]]
    token_ids, block_size = fields["token_ids"], fields["block_size"]
    # What has fewer hashes than blocks left some out, and is no row.
    if not hashes or type(block_size) is not int or len(token_ids) != block_size * len(hashes):
        raise ValueError("token_ids are not those of the blocks")
    parent, medium = fields.get("parent_block_hash"), is_host(fields.get("medium"))
    adapter, salt = _adapter(fields), _salt_of_metadata(fields)
    extra_keys = fields.get("extra_keys")
    keys = None
    if isinstance(extra_keys, list) and any(extra_keys):
        texts, keys = _extra_keys(extra_keys, len(hashes), adapter)
        salt = texts if parent is None and texts is not None else salt
    kind = fields.get("kv_cache_spec_kind")
    return Stored(
        hashes=hashes,
        parent=None if parent is None else hash_of(parent),
        token_ids=token_ids,
        block_size=block_size,
        is_host=None if fields.get("locality") == "REMOTE" else medium,
        adapter=adapter,
        salt=salt,
        extra_keys=keys,
        group=_group(fields),
        is_windowed=bool(fields.get("kv_cache_spec_sliding_window")) or not _is_whole(kind),
    )


def _removed(fields: Mapping[str, Any]) -> Removed:
    try:
        hashes = [hash_of(each) for each in fields["block_hashes"]]
    except (KeyError, TypeError) as error:
        raise BadEvents(f"blocks were removed, and not which: {error}") from error
    where = None if fields.get("locality") == "REMOTE" else is_host(fields.get("medium"))
    return Removed(hashes, where, _group(fields))


def _group(fields: Mapping[str, Any]) -> int | None:
    group = fields.get("group_idx")
    return group if type(group) is int else None


def _is_whole(kind: object) -> bool:
    """Does a cache of this kind hold all of a prefix? Windows, chunks and states do not."""
    return not isinstance(kind, str) or kind.startswith(("full", "mla"))


def _adapter(fields: Mapping[str, Any]) -> str | None:
    """By name; where there is only a number, by a name that no request has: it is never taken for the bare model."""
    name, number = fields.get("lora_name"), fields.get("lora_id")
    if isinstance(name, str):
        return name
    return None if number is None else f"\0lora {number}"


def _salt_of_metadata(fields: Mapping[str, Any]) -> str | None:
    """SGLang has had a map of metadata, or a list, where vLLM has the adapter's name."""
    for name in ("metadata", "lora_name", "extra_keys"):
        found = fields.get(name)
        if isinstance(found, dict) and isinstance(found.get("cache_salt"), str):
            return str(found["cache_salt"])
    return None


def _extra_keys(
    raw: Sequence[Any], num_blocks: int, adapter: str | None
) -> tuple[str | None, list[tuple[bytes, ...]] | None]:
    """The salt of the first block, which is the text in it beside the adapter, and what other keys each block has."""
    if len(raw) != num_blocks:
        raise ValueError("extra_keys are not those of the blocks")
    salt, keys = None, []
    for at, block in enumerate(raw):
        rest = list(block) if block is not None else []
        if adapter is not None and adapter in rest:
            rest.remove(adapter)
        if at == 0 and (texts := [key for key in rest if isinstance(key, str)]):
            salt = texts[0]
            rest.remove(salt)
        keys.append(tuple(_key(key) for key in rest))
    return salt, keys if any(keys) else None


def _key(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def from_polled(page: bytes) -> Iterator[tuple[int, Sequence[Event]]]:
    """Number and events of each entry of TensorRT-LLM's /kv_cache_events. Raises BadEvents."""
    try:
        entries = msgspec.json.decode(page)
        for entry in entries:
            yield int(entry["event_id"]), _polled(entry["data"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadEvents(f"no list of events: {error!r}") from error


def _polled(entry: Mapping[str, Any]) -> Sequence[Event]:
    match entry.get("type"):
        case "created":
            return [Cleared()]
        case "stored":
            return list(_polled_stored(entry))
        case "removed":
            return [Removed([hash_of(each) for each in entry["block_hashes"]]), *_removed_from_host(entry)]
        case "updated" if isinstance(level := entry.get("cache_level"), dict):
            return [Moved(hash_of(entry["block_hash"]), int(level["new_value"]) > 0)]
        case _:
            return []


def _removed_from_host(entry: Mapping[str, Any]) -> Sequence[Event]:
    """It does not say from which memory."""
    return [Removed([hash_of(each) for each in entry["block_hashes"]], is_host=True)]


def _polled_stored(entry: Mapping[str, Any]) -> Iterator[Stored]:
    """One event a block: those of one entry may differ in size, adapter and memory."""
    parent = entry.get("parent_hash")
    before = None if parent is None else hash_of(parent)
    for block in entry["blocks"]:
        tokens, own = [int(token["token_id"]) for token in block["tokens"]], hash_of(block["block_hash"])
        extra = tuple(_key(token["token_extra_id"]) for token in block["tokens"] if token.get("token_extra_id"))
        number = block.get("lora_id")
        yield Stored(
            hashes=[own],
            parent=before,
            token_ids=tokens,
            block_size=len(tokens),
            is_host=int(block.get("cache_level") or 0) > 0,
            adapter=None if number is None else f"\0lora {number}",
            extra_keys=[extra] if extra else None,
        )
        before = own
