"""The routes by which a running engine is changed: adapters come and go, it sleeps and wakes. As vLLM has them.

Knows aiohttp and the shapes of these requests. Must not know how any of it is done (control).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from aiohttp import web
from msgspec import Struct

from engine.adapters import AdapterError, UnknownAdapter
from engine.control import Control
from engine.loop import EngineError
from engine.server.errors import ApiError, bad_request
from engine.server.fields import decode


class LoadAdapterFields(Struct):
    lora_name: str
    lora_path: str


class UnloadAdapterFields(Struct):
    """`lora_int_id` is vLLM's number of the adapter; names are enough here."""

    lora_name: str
    lora_int_id: int | None = None


_Route = Callable[["Operator", web.Request], Awaitable[web.Response]]


def _translated(route: _Route) -> _Route:
    @wraps(route)
    async def translated(self: "Operator", http: web.Request) -> web.Response:
        try:
            return await route(self, http)
        except UnknownAdapter as error:
            raise ApiError(404, str(error), param="lora_name", code="adapter_not_found") from None
        except AdapterError as error:
            raise bad_request(str(error), "lora_path") from None
        except EngineError as error:
            raise ApiError(503 if error.is_stopped else 500, str(error)) from None

    return translated


@dataclass(frozen=True, slots=True)
class Operator:
    control: Control[Any]

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/load_lora_adapter", self.load_adapter),
            web.post("/v1/unload_lora_adapter", self.unload_adapter),
            web.post("/sleep", self.sleep),
            web.post("/wake_up", self.wake),
            web.get("/is_sleeping", self.is_sleeping),
        ]

    @_translated
    async def load_adapter(self, http: web.Request) -> web.Response:
        asked = decode(await http.read(), LoadAdapterFields)
        await self.control.load_adapter(asked.lora_name, asked.lora_path)
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' added successfully.")

    @_translated
    async def unload_adapter(self, http: web.Request) -> web.Response:
        asked = decode(await http.read(), UnloadAdapterFields)
        await self.control.unload_adapter(asked.lora_name)
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")

    @_translated
    async def sleep(self, http: web.Request) -> web.Response:
        level = http.query.get("level", "1")
        if level not in ("1", "2"):
            raise bad_request(f"level must be 1 or 2, not {level!r}", "level")
        await self.control.sleep(int(level))
        return web.Response()

    @_translated
    async def wake(self, http: web.Request) -> web.Response:
        # vLLM wakes parts of itself by tags; all of ours wake together.
        if "tags" in http.query:
            raise bad_request("tags is not supported by this engine: it wakes as a whole", "tags")
        await self.control.wake()
        return web.Response()

    async def is_sleeping(self, http: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.control.is_asleep})
