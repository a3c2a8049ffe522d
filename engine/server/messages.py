"""What the engine has to say, as engine.proto's messages, and what it is asked, as its own values.

Knows both shapes. Must not know calls, statuses or the engine's loop.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from collections.abc import Sequence as List
from typing import Any

import msgspec

from engine.kv_wire import KvTransferParams
from engine.prefixes import Change, Medium, Removed, Stored
from engine.scheduler import Scheduler
from engine.sequence import FinishReason, Output, Request
from engine.server.fields import decode
from engine.server.openai import CompletionRequest
from pointsman.v1 import common_pb2, engine_pb2

_REASONS: Mapping[FinishReason, common_pb2.FinishReason] = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
}
_MEDIA = {Medium.GPU: engine_pb2.MEDIUM_DEVICE, Medium.CPU: engine_pb2.MEDIUM_HOST}
# A message of a snapshot stays far below gRPC's 4 MiB.
_SNAPSHOT_BLOCKS = 16_384


def options(sampling: common_pb2.Sampling, room: int) -> CompletionRequest:
    """The same as a completion asks for it, so that it is checked in one place. `room`: what is left of the context.

    Raises ApiError (400) naming the field.
    """
    fields: dict[str, Any] = {descriptor.name: value for descriptor, value in sampling.ListFields()}
    fields |= {name: list(fields[name]) for name in ("stop", "stop_token_ids") if name in fields}
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if fields.get("seed", 0) >= 2**63:
        fields["seed"] -= 2**64
    fields.setdefault("max_tokens", max(room, 1))
    return decode(msgspec.json.encode(fields | {"model": "", "prompt": ""}), CompletionRequest)


def transfer_params(asked: engine_pb2.GenerateRequest) -> KvTransferParams:
    there = {descriptor.name: value for descriptor, value in asked.kv_transfer.ListFields()}
    if "remote_block_ids" in there or asked.kv_transfer.do_remote_prefill:
        there["remote_block_ids"] = list(asked.kv_transfer.remote_block_ids)
    return KvTransferParams(**there)


def kv_transfer(params: KvTransferParams) -> engine_pb2.KvTransfer:
    return engine_pb2.KvTransfer(**msgspec.structs.asdict(params))


async def generated(outputs: AsyncIterator[Output], request: Request) -> AsyncIterator[engine_pb2.GenerateEvent]:
    """An event for each output that says something. Raises what the stream raises."""
    last: Output | None = None
    async for output in outputs:
        event = engine_pb2.GenerateEvent(token_ids=output.token_ids, text=output.text)
        if output.finish_reason is not None:
            event.finish_reason = _REASONS[output.finish_reason]
            if isinstance(output.stop_reason, str):
                event.stop = output.stop_reason
            elif output.stop_reason is not None:
                event.stop_token_id = output.stop_reason
        # An abort from outside knows no counts.
        counted = last if output.finish_reason is FinishReason.ABORT else output
        if last is None or output.finish_reason is not None:
            event.usage.CopyFrom(_usage(request, counted))
        last = output
        yield event


def _usage(request: Request, output: Output | None) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=len(request.prompt),
        cached_tokens=output.num_cached_tokens if output else 0,
        output_tokens=output.num_output_tokens if output else 0,
    )


def load_report(scheduler: Scheduler) -> engine_pb2.LoadReport:
    return engine_pb2.LoadReport(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        queued_tokens=scheduler.num_queued_prefill_tokens,
        used_blocks=scheduler.pool.num_used,
        total_blocks=scheduler.pool.num_blocks,
        block_size=scheduler.pool.block_size,
        adapters=[adapter.name for adapter in scheduler.adapters],
    )


def snapshot(held: List[Stored], block_size: int) -> Iterator[engine_pb2.KvEvent]:
    """All that is held, in as many parts as it takes; at least one."""
    parts: list[list[Stored]] = [[]]
    num_blocks = 0
    for stored in held:
        if num_blocks + len(stored.prefixes) > _SNAPSHOT_BLOCKS and parts[-1]:
            parts.append([])
            num_blocks = 0
        parts[-1].append(stored)
        num_blocks += len(stored.prefixes)
    for part in parts:
        chains = [_stored(stored) for stored in part]
        yield engine_pb2.KvEvent(
            snapshot=engine_pb2.KvSnapshot(chains=chains, block_size=block_size, is_last=part is parts[-1])
        )


def kv_event(change: Change) -> engine_pb2.KvEvent:
    if isinstance(change, Stored):
        return engine_pb2.KvEvent(stored=_stored(change))
    if isinstance(change, Removed):
        removed = engine_pb2.KvRemoved(block_hashes=change.hashes, medium=_MEDIA[change.medium])
        return engine_pb2.KvEvent(removed=removed)
    return engine_pb2.KvEvent(cleared=engine_pb2.KvCleared())


def _stored(change: Stored) -> engine_pb2.KvStored:
    parent = change.prefixes[0].parent
    return engine_pb2.KvStored(
        parent_hash=parent.hash if parent else None,
        block_hashes=[prefix.hash for prefix in change.prefixes],
        medium=_MEDIA[change.medium],
    )
