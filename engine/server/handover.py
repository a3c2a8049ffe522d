"""`kv_transfer_params` of a request: its prompt's KV comes from another engine, or is to be fetched by one.

Knows the field, and what of it happens before and after the request. Must not know HTTP or how KV travels.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from engine.adapters import UnknownAdapter
from engine.kv_wire import KvTransferParams
from engine.prefixes import Scope
from engine.sequence import Request
from engine.server.errors import bad_request
from engine.transfer import KvTransfer

_FIELD = "kv_transfer_params"


@dataclass(frozen=True, slots=True)
class Handover:
    transfer: KvTransfer
    params: KvTransferParams
    request: Request

    def __post_init__(self) -> None:
        """Raises ApiError (400) for what this engine cannot do."""
        try:
            self.transfer.check(self.params)
        except ValueError as error:
            raise bad_request(f"{_FIELD}: {error}", _FIELD) from None

    async def before(self) -> None:
        if self.params.do_remote_prefill:
            await self.transfer.fetch(self.params, self.request.prompt, self._scope())

    async def after(self) -> dict[str, Any]:
        """What the answer says beside the rest."""
        if not self.params.do_remote_decode:
            return {}
        offered = await self.transfer.offer(self.request.prompt, self._scope())
        return {_FIELD: msgspec.to_builtins(offered)}

    def _scope(self) -> Scope:
        try:
            return self.transfer.engine.core.scheduler.scope_of(self.request)
        except UnknownAdapter as error:
            raise bad_request(str(error), "model") from None
