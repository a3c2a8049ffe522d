"""The routes that are not inference, on aiohttp: health and models on the data port; metrics and replicas on the admin
port. Knows paths and answer shapes; what they say comes from the callables in `Views`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from router import headers, openai
from router.errors import MethodNotAllowed, PointsmanError, UnknownModel, UnknownRoute

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Views:
    """What the pages show. `ready()` is (is it ready, detail); `set_draining(replica_id, on)` raises UnknownReplica."""

    version: str
    models: Callable[[], Sequence[Json]]
    live: Callable[[], Json]
    ready: Callable[[], tuple[bool, Json]]
    replicas: Callable[[], Sequence[Json]]
    set_draining: Callable[[str, bool], None]
    metrics: Callable[[], bytes]


class UnknownReplica(PointsmanError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_replica"


def data_routes(views: Views) -> web.Application:
    """What the data port serves besides inference."""
    app = web.Application(middlewares=[_openai_errors])
    app.router.add_get("/health", _empty)
    app.router.add_get("/livez", lambda _: _json(views.live()))
    app.router.add_get("/readyz", lambda _: _readiness(views))
    app.router.add_get("/version", lambda _: _json({"version": views.version}))
    app.router.add_get("/v1/models", lambda _: _json({"object": "list", "data": views.models()}))
    app.router.add_get("/v1/models/{id:.+}", lambda request: _model(views, request.match_info["id"]))
    return app


def admin_routes(views: Views) -> web.Application:
    """What the admin port serves."""
    app = web.Application(middlewares=[_openai_errors])
    app.router.add_get("/health", _empty)
    app.router.add_get("/readyz", lambda _: _readiness(views))
    app.router.add_get("/metrics", lambda _: _metrics(views))
    app.router.add_get("/admin/replicas", lambda _: _json({"replicas": views.replicas()}))
    app.router.add_post("/admin/replicas/{id:.+}/drain", lambda request: _set_draining(views, request, True))
    app.router.add_post("/admin/replicas/{id:.+}/undrain", lambda request: _set_draining(views, request, False))
    return app


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error on every path has OpenAI's body and a request id."""
    try:
        response = await handler(request)
    except web.HTTPNotFound:
        response = _error(UnknownRoute(f"There is no route {request.method} {request.path}."))
    except web.HTTPMethodNotAllowed as error:
        response = _error(MethodNotAllowed(f"{request.path} does not take {request.method}."))
        response.headers["allow"] = ", ".join(sorted(error.allowed_methods))
    except PointsmanError as error:
        response = _error(error)
    response.headers["x-request-id"] = headers.request_id([(k.lower(), v) for k, v in request.headers.items()])
    return response


def _error(error: PointsmanError) -> web.Response:
    return web.Response(body=openai.error_body(error), status=error.status, content_type="application/json")


async def _json(body: Json, status: int = 200) -> web.Response:
    return web.json_response(body, status=status, dumps=lambda value: json.dumps(value, separators=(",", ":")))


async def _empty(_: web.Request) -> web.Response:
    return web.Response()


async def _readiness(views: Views) -> web.Response:
    is_ready, detail = views.ready()
    return await _json(detail, 200 if is_ready else 503)


async def _model(views: Views, id: str) -> web.Response:
    for model in views.models():
        if model["id"] == id:
            return await _json(model)
    raise UnknownModel(f"The model `{id}` does not exist.", param="model")


async def _metrics(views: Views) -> web.Response:
    return web.Response(body=views.metrics(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


async def _set_draining(views: Views, request: web.Request, on: bool) -> web.Response:
    views.set_draining(request.match_info["id"], on)
    return await _json({"id": request.match_info["id"], "draining": on})
