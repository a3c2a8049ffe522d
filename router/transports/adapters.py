"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter` as vLLM has them, for all replicas of a model at once; and
where each adapter stands, for operators. Knows paths, bodies and statuses; what is done is the rollout's.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from router import openai
from router.errors import InvalidRequest, PointsmanError, UnknownModel
from router.replicas.rollout import AdapterState, Rollout, Standing
from router.replicas.wanted import Adapter

Json = Mapping[str, object]
PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
NAME_CHARACTERS = 256


class LoadFields(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's, with the base model where the router serves several."""

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False


class UnloadFields(msgspec.Struct, forbid_unknown_fields=True):
    """`lora_int_id` is vLLM's number of the adapter; names are enough."""

    lora_name: str
    lora_int_id: int | None = None


class LoadFailed(PointsmanError):
    """No replica has it: the order is wrong (400), or all of them failed (502)."""

    type = "invalid_request_error"
    code = "adapter_not_loaded"

    def __init__(self, name: str, standings: Sequence[Standing]) -> None:
        reasons = "; ".join(f"{each.replica}: {each.reason}" for each in standings)
        super().__init__(f"No replica could load the adapter `{name}`: {reasons}", param="lora_path")
        self.status = 400 if all(each.is_refused for each in standings) else 502
        if self.status == 502:
            self.type = "upstream_error"


@dataclass(frozen=True, slots=True)
class Served:
    """What names lead to now: `base_models()`, and `adapters()` with the base model of each; `settled()` returns once
    siblings know them as well."""

    base_models: Callable[[], Sequence[str]]
    adapters: Callable[[], Mapping[str, str]]
    settled: Callable[[], Awaitable[None]]


def add_adapter_routes(app: web.Application, rollout: Rollout, served: Served) -> None:
    """On the data port; who may is decided before."""
    pages = _AdapterPages(rollout, served)
    app.router.add_post(PATHS[0], pages.load)
    app.router.add_post(PATHS[1], pages.unload)


def add_adapter_list(app: web.Application, replicas: Callable[[], Sequence[Json]]) -> None:
    """`GET /admin/adapters`, from the rows of the replica table."""

    async def page(_: web.Request) -> web.Response:
        rows = [
            {"lora_name": name, "replica": row["id"], **standing}
            for row in replicas()
            for name, standing in _mapping(row.get("adapters")).items()
        ]
        return web.json_response({"adapters": sorted(rows, key=lambda row: (row["lora_name"], row["replica"]))})

    app.router.add_get("/admin/adapters", page)


@dataclass(frozen=True, slots=True)
class _AdapterPages:
    rollout: Rollout
    served: Served

    async def load(self, request: web.Request) -> web.Response:
        _, asked = openai.decoded(await request.read(), LoadFields)
        adapter = Adapter(asked.lora_name, asked.lora_path, self._base_model(asked))
        self._check(adapter, may_replace=asked.load_inplace)
        standings = await self.rollout.load(adapter, again=asked.load_inplace)
        if standings and all(each.state is AdapterState.FAILED for each in standings):
            raise LoadFailed(adapter.name, standings)
        await self.served.settled()
        has_failed = any(each.state is AdapterState.FAILED for each in standings)
        is_loaded = any(each.state is AdapterState.LOADED for each in standings)
        return _answer(adapter.name, adapter.model, standings, 207 if has_failed else 200 if is_loaded else 202)

    async def unload(self, request: web.Request) -> web.Response:
        _, asked = openai.decoded(await request.read(), UnloadFields)
        wanted = self.rollout.book.wanted
        known = wanted.adapters.get(asked.lora_name)
        model = known.model if known is not None else self.served.adapters().get(asked.lora_name)
        if model is None and asked.lora_name in wanted.gone:
            model = wanted.gone[asked.lora_name][0]  # asked for twice
        if model is None:
            raise UnknownModel(f"The adapter `{asked.lora_name}` is not loaded.", param="lora_name")
        standings = await self.rollout.unload(asked.lora_name, model)
        await self.served.settled()
        return _answer(asked.lora_name, model, standings, 207 if standings else 200)

    def _base_model(self, asked: LoadFields) -> str:
        """Raises InvalidRequest or UnknownModel."""
        models = self.served.base_models()
        if asked.base_model_name is not None:
            if asked.base_model_name not in models:
                known = ", ".join(models) or "none"
                words = f"The model `{asked.base_model_name}` does not exist. Known base models: {known}."
                raise UnknownModel(words, param="base_model_name")
            return asked.base_model_name
        if len(models) == 1:
            return models[0]
        which = (
            f"`base_model_name` must say which of {', '.join(models)}"
            if models
            else "no replica has said what it serves"
        )
        raise InvalidRequest(f"The base model of `{asked.lora_name}` is unknown: {which}.", param="base_model_name")

    def _check(self, adapter: Adapter, *, may_replace: bool) -> None:
        """Raises InvalidRequest."""
        if not adapter.name.strip() or len(adapter.name) > NAME_CHARACTERS:
            raise InvalidRequest(f"`lora_name` must have 1 to {NAME_CHARACTERS} characters.", param="lora_name")
        if not adapter.path.strip():
            raise InvalidRequest("`lora_path` must not be empty.", param="lora_path")
        if adapter.name in self.served.base_models():
            raise InvalidRequest(f"`{adapter.name}` is a base model.", param="lora_name")
        before = self.rollout.book.wanted.adapters.get(adapter.name)
        if before is not None and before != adapter and not may_replace:
            what = f"from {before.path} for {before.model}; unload it first, or say `load_inplace`"
            raise InvalidRequest(f"The adapter `{adapter.name}` is loaded already, {what}.", param="lora_name")


def _answer(name: str, model: str, standings: Sequence[Standing], status: int) -> web.Response:
    """200: all is done; 207: not on all replicas, which are told again; 202: none is ready, it will be done then."""
    replicas = [{"replica": each.replica, "state": each.state, "reason": each.reason} for each in standings]
    return web.json_response({"lora_name": name, "base_model_name": model, "replicas": replicas}, status=status)


def _mapping(value: object) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}
