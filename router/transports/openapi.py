"""The OpenAPI document of each port: what it serves, of what is listed here. A route that is missing here fails a test;
one that this router does not serve, by its settings, is left out. Knows paths and bodies; knows no handler."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from router.openai import Peek
from router.prefix.indexer import Query, Registration, Removal
from router.transports.adapters import LoadFields, UnloadFields
from router.transports.tokenize import DetokenizeBody, TokenizeBody

PATH = "/openapi.json"
_PARAMETER = re.compile(r"\{(\w+)\}")
_REFERENCE = "#/components/schemas/{name}"
_JSON, _FORM, _PACKED = "application/json", "multipart/form-data", "application/msgpack"


class AnyBody(msgspec.Struct):
    """An object; its fields are those of the API that the summary names."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`body` is decoded by the router; engines may take more fields than it reads. `answer` is a media type."""

    method: str
    path: str
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: str = _JSON
    media: str = _JSON


INFERENCE = (
    Operation("POST", "/v1/chat/completions", "OpenAI's chat completions; events with `stream`", Peek),
    Operation("POST", "/v1/completions", "OpenAI's completions; events with `stream`", Peek),
    Operation("POST", "/v1/embeddings", "OpenAI's embeddings", Peek),
    Operation("POST", "/v1/responses", "OpenAI's Responses over any chat engine", AnyBody),
    Operation("POST", "/v1/messages", "Anthropic's Messages over any chat engine", AnyBody),
    Operation("POST", "/v1/messages/count_tokens", "How many tokens a message has", AnyBody),
    Operation("POST", "/tokenize", "A text's or a chat's tokens, as vLLM has it", TokenizeBody),
    Operation("POST", "/detokenize", "Tokens as text, as vLLM has it", DetokenizeBody),
    Operation("GET", "/v1/chat/ws", "A WebSocket for many requests and conversations", answer="text/plain"),
    Operation("GET", "/v1/responses", "A WebSocket: OpenAI's mode of Responses for it", answer="text/plain"),
)
DATA = (
    *INFERENCE,
    Operation("GET", "/v1/models", "The models that may be asked for"),
    Operation("GET", "/v1/models/{id}", "One of them"),
    Operation("GET", "/v1/responses/{id}", "A stored response; the events of one that is under way with `stream`"),
    Operation("DELETE", "/v1/responses/{id}", "Forget a stored response"),
    Operation("POST", "/v1/responses/{id}/cancel", "Stop a response in the background"),
    Operation("GET", "/v1/responses/{id}/input_items", "What was put into a stored response"),
    Operation("POST", "/v1/async/{surface}", "A request that nobody waits for; its end is told by a webhook", AnyBody),
    Operation("GET", "/v1/async/{id}", "How it stands, and its answer"),
    Operation("DELETE", "/v1/async/{id}", "Cancel it"),
    Operation("POST", "/v1/async/{id}/webhook", "Tell of its end once more"),
    Operation("POST", "/v1/files", "Upload a file: a form of `purpose` and `file`", AnyBody, media=_FORM),
    Operation("GET", "/v1/files", "Your files"),
    Operation("GET", "/v1/files/{id}", "One of them"),
    Operation("GET", "/v1/files/{id}/content", "Its bytes", answer="application/octet-stream"),
    Operation("DELETE", "/v1/files/{id}", "Delete a file"),
    Operation("POST", "/v1/batches", "OpenAI's batches: the requests of a file, within 24 hours", AnyBody),
    Operation("GET", "/v1/batches", "Your batches"),
    Operation("GET", "/v1/batches/{id}", "One of them"),
    Operation("POST", "/v1/batches/{id}/cancel", "Stop a batch"),
    Operation("POST", "/v1/load_lora_adapter", "Load an adapter on all replicas of its model", LoadFields),
    Operation("POST", "/v1/unload_lora_adapter", "Unload an adapter everywhere", UnloadFields),
    Operation("GET", "/health", "Does the process live?", answer="text/plain"),
    Operation("GET", "/livez", "Does it, and how late is its event loop?"),
    Operation("GET", "/readyz", "Is any replica ready? 503 while none is"),
    Operation("GET", "/version", "The router's version"),
    Operation("GET", PATH, "This document"),
)
ADMIN = (
    Operation("GET", "/health", "Does the process live?", answer="text/plain"),
    Operation("GET", "/readyz", "Is any replica ready? 503 while none is"),
    Operation("GET", "/metrics", "For Prometheus", answer="text/plain"),
    Operation("GET", "/admin/replicas", "The replicas, and what they have to do"),
    Operation("POST", "/admin/replicas/{id}/drain", "Send it nothing new"),
    Operation("POST", "/admin/replicas/{id}/undrain", "Let it serve again"),
    Operation("POST", "/admin/explain", "What would be decided for a request now, and why", Peek),
    Operation("GET", "/admin/adapters", "The adapters of each replica"),
    Operation("GET", "/admin/keys", "All keys, without their tokens"),
    Operation("POST", "/admin/keys", "A new key; its token is told once", AnyBody),
    Operation("PATCH", "/admin/keys/{id}", "Change a key", AnyBody),
    Operation("DELETE", "/admin/keys/{id}", "Revoke a key"),
    Operation("GET", "/admin/tenants", "All tenants"),
    Operation("PUT", "/admin/tenants/{name}", "A tenant's weight and limits", AnyBody),
    Operation("DELETE", "/admin/tenants/{name}", "Remove a tenant"),
    Operation("GET", "/admin/webhooks", "Webhooks that could not be delivered"),
    Operation("POST", "/admin/webhooks/{id}/replay", "Deliver one again"),
    Operation("GET", "/admin/webhooks/secrets", "Which secrets sign webhooks, without them"),
    Operation(
        "POST", "/admin/webhooks/secrets", "A new one, told once; older ones sign beside it for a while", AnyBody
    ),
    Operation("GET", "/admin/prefix", "All that is known of caches, for a router that begins", answer=_PACKED),
    Operation(
        "GET", "/admin/lessons", "What was learned of replicas' speeds, for a router that begins", answer=_PACKED
    ),
    Operation("POST", "/register", "Listen to an engine's cache events", Registration),
    Operation("POST", "/unregister", "Listen no more", Removal),
    Operation("POST", "/query", "Who holds this prompt, by its tokens?", Query),
    Operation("POST", "/query_by_hash", "Who holds this prompt, by its blocks?", Query),
    Operation("POST", "/admin/workers/restart", "Replace all router processes, one by one"),
    Operation("GET", PATH, "This document"),
)


def add_openapi_route(
    app: web.Application,
    operations: Sequence[Operation],
    version: str,
    besides: Iterable[tuple[str, str]] = (),
    passed: Sequence[str] = (),
) -> None:
    """The last route of an app. `besides` are methods and paths that the port serves itself, `passed` paths of engines
    that it passes on."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=_JSON)

    app.router.add_get(PATH, page)
    served = served_by(app) | set(besides)
    shown = [each for each in operations if (each.method, each.path) in served]
    shown += [
        Operation("POST", path, "The engine's own, passed on as it is", AnyBody)
        for path in passed
        if not path.endswith("*")
    ]
    body = msgspec.json.encode(document(shown, version))


def served_by(app: web.Application) -> set[tuple[str, str]]:
    """Methods and paths, parameters as `{name}`."""
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    return {(method, path) for method, path in found if method != "HEAD"}


def document(operations: Sequence[Operation], version: str) -> Mapping[str, Any]:
    bodies = list(dict.fromkeys(each.body for each in operations if each.body is not None))
    references, schemas = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    by_body = dict(zip(bodies, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _shown(each, by_body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pointsman", "version": version},
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {"schemas": schemas | {"Error": _ERROR}, "securitySchemes": {"key": _KEY}},
    }


_KEY = {"type": "http", "scheme": "bearer"}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def _shown(operation: Operation, by_body: Mapping[type, Mapping[str, Any]]) -> Mapping[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(operation.path)
    ]
    shown: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "As asked", "content": {operation.answer: {}}},
            "default": {
                "description": "OpenAI's error body",
                "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if parameters:
        shown["parameters"] = parameters
    if operation.body is not None:
        content = {operation.media: {"schema": by_body[operation.body]}}
        shown["requestBody"] = {"required": True, "content": content}
    return shown
