"""The engine's HTTP port: its routes.

Knows aiohttp and who answers which route. Must not know how requests are checked, computed or answered.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web

from engine.adapters import Adapter
from engine.config import BLOCK_SIZE
from engine.grammar import Grammars
from engine.loop import EngineLoop
from engine.sampling import Pooling
from engine.server.chats import Arrival, Planner
from engine.server.embeddings import Embedder
from engine.server.errors import ApiError, Handler, bad_request, errors_as_json
from engine.server.fields import decode
from engine.server.generation import Generation
from engine.server.handover import Handover
from engine.server.metrics import EngineMetrics
from engine.server.openai import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    TokenizeRequest,
)
from engine.server.options import Limits
from engine.server.prompts import Prompts
from engine.server.tools import ToolFormat, format_of
from engine.tokenizer import Tokenizer
from engine.transfer import KvTransfer

MAX_BODY_BYTES = 32 << 20
_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes serve. `root` says where the model came from; `max_model_len` is in tokens. `tool_format` None
    is what the chat template tells. `vector_size` is the number of a hidden state's dimensions."""

    engine: EngineLoop
    tokenizer: Tokenizer
    model_id: str
    root: str
    vocab_size: int
    max_model_len: int
    transfer: KvTransfer | None = None
    tool_format: ToolFormat | None = None
    pooling: Pooling = Pooling.LAST
    vector_size: int | None = None
    started_s: int = field(default_factory=lambda: int(time.time()))
    planner: Planner = field(init=False)
    embedder: Embedder = field(init=False)

    def __post_init__(self) -> None:
        planner = Planner(
            tokenizer=self.tokenizer,
            prompts=Prompts(self.tokenizer, self.vocab_size),
            grammars=Grammars(self.tokenizer.to_json, self.vocab_size, self.tokenizer.eos_token_ids),
            limits=Limits(
                max_model_len=self.max_model_len,
                vocab_size=self.vocab_size,
                max_num_seqs=self.engine.core.scheduler.max_num_seqs,
                eos_token_ids=frozenset(self.tokenizer.eos_token_ids),
            ),
            tool_format=self.tool_format or format_of(self.tokenizer.chat_template),
        )
        embedder = Embedder(self.engine, planner.prompts, self.pooling, self.max_model_len, self.vector_size)
        object.__setattr__(self, "planner", planner)
        object.__setattr__(self, "embedder", embedder)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[errors_as_json], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_name_request)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.complete),
                web.post("/v1/embeddings", self.embed),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{id:.+}", self.model),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.get("/health", self.health),
                web.get("/version", self.version),
                web.get("/metrics", _serves(EngineMetrics(self.engine.core, self.model_id).render, "text/plain")),
                # Described once: it takes a tenth of a second.
                web.get("/pointsman/tokenizer", _serves(partial(bytes, self.described()), "application/json")),
            ]
        )
        return app

    async def chat(self, http: web.Request) -> web.StreamResponse:
        asked = decode(await http.read(), ChatRequest)
        generation = self._handing_over(await self.planner.chat(asked, self._arrival(asked.model)), asked)
        return await (generation.stream(http, self.engine) if asked.stream else generation.whole(self.engine))

    async def complete(self, http: web.Request) -> web.StreamResponse:
        asked = decode(await http.read(), CompletionRequest)
        generation = self._handing_over(await self.planner.completion(asked, self._arrival(asked.model)), asked)
        return await (generation.stream(http, self.engine) if asked.stream else generation.whole(self.engine))

    async def embed(self, http: web.Request) -> web.Response:
        asked = decode(await http.read(), EmbeddingRequest)
        body = await self.embedder.answer(asked, self._arrival(asked.model))
        return web.Response(body=body, content_type="application/json")

    async def models(self, http: web.Request) -> web.Response:
        adapters = [self._described_adapter(adapter) for adapter in self.engine.core.scheduler.adapters]
        return web.json_response({"object": "list", "data": [self._described_model(), *adapters]})

    async def model(self, http: web.Request) -> web.Response:
        adapter = self._adapter(http.match_info["id"])
        described = self._described_model() if adapter is None else self._described_adapter(adapter)
        return web.json_response(described)

    async def tokenize(self, http: web.Request) -> web.Response:
        asked = decode(await http.read(), TokenizeRequest)
        if (asked.prompt is None) == (asked.messages is None):
            raise bad_request("give either prompt or messages", "prompt")
        if asked.prompt is None:
            tokens = await self.planner.prompts.of_chat(asked)
        else:
            add_special_tokens = asked.add_special_tokens is not False
            tokens = await self.planner.prompts.of_text(asked.prompt, "prompt", add_special_tokens=add_special_tokens)
        texts = [self.tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in tokens]
        answer = {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens}
        return web.json_response(answer | {"token_strs": texts if asked.return_token_strs else None})

    async def detokenize(self, http: web.Request) -> web.Response:
        asked = decode(await http.read(), DetokenizeRequest)
        tokens = await self.planner.prompts.of_text(asked.tokens, "tokens")
        return web.json_response({"prompt": await asyncio.to_thread(self.tokenizer.decode, tokens)})

    async def health(self, http: web.Request) -> web.Response:
        if self.engine.is_stopped:
            raise ApiError(503, "the engine has stopped")
        return web.json_response({"status": "ok"})

    async def version(self, http: web.Request) -> web.Response:
        return web.json_response({"version": version("pointsman")})

    def _arrival(self, model_id: str) -> Arrival:
        adapter = self._adapter(model_id)
        return Arrival(self.engine.clock(), None if adapter is None else adapter.name)

    def _adapter(self, model_id: str) -> Adapter | None:
        """None for the model itself. Raises ApiError (404) for what is not served."""
        if model_id == self.model_id:
            return None
        adapters = self.engine.core.scheduler.adapters
        if model_id in adapters:
            return adapters.find(model_id)
        served = ", ".join([self.model_id, *(adapter.name for adapter in adapters)])
        raise ApiError(
            404,
            f"the model {model_id} does not exist; this engine serves {served}",
            param="model",
            code="model_not_found",
        )

    def _handing_over(self, generation: Generation, asked: GenerationRequest) -> Generation:
        """With what its `kv_transfer_params` ask for."""
        params = asked.kv_transfer_params
        if params is None or not (params.do_remote_decode or params.do_remote_prefill):
            return generation
        if self.transfer is None:
            raise bad_request("kv_transfer_params: this engine moves no KV", "kv_transfer_params")
        if len(generation.prompts) > 1:
            raise bad_request("kv_transfer_params needs a single prompt", "kv_transfer_params")
        return replace(generation, handover=Handover(self.transfer, params, generation.prompts[0][0].request))

    def _described_model(self) -> dict[str, Any]:
        return {
            "id": self.model_id,
            "object": "model",
            "created": self.started_s,
            "owned_by": "pointsman",
            "root": self.root,
            "parent": None,
            "max_model_len": self.max_model_len,
        }

    def _described_adapter(self, adapter: Adapter) -> dict[str, Any]:
        return self._described_model() | {"id": adapter.name, "root": adapter.path, "parent": self.model_id}

    def described(self) -> bytes:
        """All that is needed to make its prompts elsewhere. Takes some 0.1 s."""
        facts = {"model": self.model_id, "block_size": BLOCK_SIZE, "max_model_len": self.max_model_len}
        return msgspec.json.encode({**facts, **self.tokenizer.served()})


def _serves(render: Callable[[], bytes], content_type: str) -> Handler:
    async def handler(http: web.Request) -> web.Response:
        return web.Response(body=render(), content_type=content_type)

    return handler


async def _name_request(http: web.Request, response: web.StreamResponse) -> None:
    """The client's x-request-id comes back if it is sane; else it gets one."""
    asked = http.headers.get("x-request-id", "")
    response.headers["x-request-id"] = asked if _SANE_ID.fullmatch(asked) else secrets.token_hex(16)
