"""The engine's HTTP port: routes, streaming, and giving up when the client has gone.

Knows aiohttp, the engine's loop and the tokenizer. Must not know how requests are checked (openai) or answers
shaped (answers).
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web

from engine.config import BLOCK_SIZE
from engine.loop import EngineError, EngineLoop, OutputStream
from engine.sequence import Request
from engine.server import openai
from engine.server.answers import DONE, Answer, ChatAnswer, CompletionAnswer, usage
from engine.server.errors import ApiError, Handler, bad_request, errors_as_json
from engine.server.metrics import EngineMetrics
from engine.text import TextStream
from engine.tokenizer import PromptError, Tokenizer

MAX_BODY_BYTES = 32 << 20
# Below this, tokenizing takes less than the hop to a thread is worth.
_TOKENIZE_INLINE_BYTES = 8 << 10
_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes serve. `root` says where the model came from; `max_model_len` is in tokens."""

    engine: EngineLoop
    tokenizer: Tokenizer
    model_id: str
    root: str
    vocab_size: int
    max_model_len: int
    started_s: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> web.Application:
        app = web.Application(middlewares=[errors_as_json], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_name_request)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.complete),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{id:.+}", self.model),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.get("/health", self.health),
                web.get("/version", self.version),
                web.get("/metrics", _serves(EngineMetrics(self.engine.core, self.model_id).render, "text/plain")),
                # Described once: it takes a tenth of a second.
                web.get("/pointsman/tokenizer", _serves(partial(bytes, self._described()), "application/json")),
            ]
        )
        return app

    async def chat(self, http: web.Request) -> web.StreamResponse:
        asked = openai.decode(await http.read(), openai.ChatRequest)
        self._check_model(asked.model)
        tokens = await self._chat_tokens(http, asked.messages, asked.chat_template_kwargs)
        answer = ChatAnswer(f"chatcmpl-{secrets.token_hex(12)}", self.model_id, int(time.time()))
        return await self._generate(http, asked, tokens, answer)

    async def complete(self, http: web.Request) -> web.StreamResponse:
        asked = openai.decode(await http.read(), openai.CompletionRequest)
        self._check_model(asked.model)
        prompt = openai.prompt_of(asked)
        tokens = await self._text_tokens(http, prompt) if isinstance(prompt, str) else prompt
        self._check_tokens(tokens, "prompt")
        answer = CompletionAnswer(f"cmpl-{secrets.token_hex(12)}", self.model_id, int(time.time()))
        return await self._generate(http, asked, tokens, answer)

    async def models(self, http: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._described_model()]})

    async def model(self, http: web.Request) -> web.Response:
        self._check_model(http.match_info["id"])
        return web.json_response(self._described_model())

    async def tokenize(self, http: web.Request) -> web.Response:
        asked = openai.decode(await http.read(), openai.TokenizeRequest)
        if (asked.prompt is None) == (asked.messages is None):
            raise bad_request("give either prompt or messages", "prompt")
        if asked.messages is not None:
            tokens = await self._chat_tokens(http, asked.messages, asked.chat_template_kwargs)
        else:
            tokens = await self._text_tokens(http, asked.prompt or "")
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": self.max_model_len})

    async def detokenize(self, http: web.Request) -> web.Response:
        asked = openai.decode(await http.read(), openai.DetokenizeRequest)
        self._check_tokens(asked.tokens, "tokens")
        return web.json_response({"prompt": self.tokenizer.decode(asked.tokens)})

    async def health(self, http: web.Request) -> web.Response:
        if self.engine.is_stopped:
            raise ApiError(503, "the engine has stopped")
        return web.json_response({"status": "ok"})

    async def version(self, http: web.Request) -> web.Response:
        return web.json_response({"version": version("pointsman")})

    async def _generate(
        self, http: web.Request, asked: openai.GenerationRequest, tokens: list[int], answer: Answer
    ) -> web.StreamResponse:
        ends = frozenset(self.tokenizer.eos_token_ids)
        request = Request(
            id=answer.id,
            prompt=tuple(tokens),
            sampling=openai.sampling_of(asked, len(tokens), self.max_model_len, ends),
            arrived_s=self.engine.clock(),
            priority=asked.priority or 0,
            salt=asked.cache_salt,
        )
        text = TextStream(self.tokenizer.decoder(), request.sampling.stop)
        try:
            with self.engine.submit(request, text) as outputs:
                if asked.stream:
                    return await _stream(http, outputs, answer, len(tokens), asked.wants_usage)
                return await _whole(outputs, answer, len(tokens))
        except EngineError as error:
            raise _translate(error) from None

    async def _chat_tokens(
        self, http: web.Request, messages: list[dict[str, Any]], template_kwargs: dict[str, Any] | None
    ) -> list[int]:
        openai.check_chat(messages, template_kwargs)
        render = partial(self.tokenizer.encode_chat, messages, **(template_kwargs or {}))
        return await _tokenize(http, render, "messages")

    async def _text_tokens(self, http: web.Request, prompt: str) -> list[int]:
        return await _tokenize(http, partial(self.tokenizer.encode, prompt), "prompt")

    def _check_model(self, model_id: str) -> None:
        if model_id != self.model_id:
            raise ApiError(
                404,
                f"the model {model_id} does not exist; this engine serves {self.model_id}",
                param="model",
                code="model_not_found",
            )

    def _check_tokens(self, tokens: list[int], param: str) -> None:
        if not tokens:
            raise bad_request(f"{param} is empty", param)
        if max(tokens) >= self.vocab_size:
            raise bad_request(f"{param}: token id {max(tokens)} is not below {self.vocab_size}", param)

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

    def _described(self) -> bytes:
        facts = {"model": self.model_id, "block_size": BLOCK_SIZE, "max_model_len": self.max_model_len}
        return msgspec.json.encode({**facts, **self.tokenizer.served()})


async def _tokenize(http: web.Request, tokenize: Callable[[], list[int]], param: str) -> list[int]:
    """On a thread when the text may be long."""
    try:
        if (http.content_length or MAX_BODY_BYTES) < _TOKENIZE_INLINE_BYTES:
            return tokenize()
        return await asyncio.to_thread(tokenize)
    except PromptError as error:
        raise bad_request(str(error), param) from None


async def _stream(
    http: web.Request, outputs: OutputStream, answer: Answer, num_prompt_tokens: int, wants_usage: bool
) -> web.StreamResponse:
    """The head goes out with the first token, so that a failure before it still has its own status."""
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    try:
        async for output in outputs:
            events = answer.delta(output) if output.text or output.finish_reason else b""
            if not response.prepared:
                events = answer.opening() + events
                await response.prepare(http)
            if output.finish_reason is not None:
                used = usage(num_prompt_tokens, output)
                events += (answer.closing(used) if wants_usage else b"") + DONE
            if events:
                await response.write(events)
    except EngineError as error:
        if not response.prepared:
            raise
        await response.write(b"data: " + _translate(error).body() + b"\n\n" + DONE)
    await response.write_eof()
    return response


async def _whole(outputs: OutputStream, answer: Answer, num_prompt_tokens: int) -> web.Response:
    texts = []
    async for output in outputs:
        texts.append(output.text)
    body = answer.whole("".join(texts), output, usage(num_prompt_tokens, output))
    return web.Response(body=body, content_type="application/json")


def _translate(error: EngineError) -> ApiError:
    return ApiError(503 if error.is_stopped else 500, str(error))


def _serves(render: Callable[[], bytes], content_type: str) -> Handler:
    async def handler(http: web.Request) -> web.Response:
        return web.Response(body=render(), content_type=content_type)

    return handler


async def _name_request(http: web.Request, response: web.StreamResponse) -> None:
    """The client's x-request-id comes back if it is sane; else it gets one."""
    asked = http.headers.get("x-request-id", "")
    response.headers["x-request-id"] = asked if _SANE_ID.fullmatch(asked) else secrets.token_hex(16)
