"""The routes that are not inference, on aiohttp: health and models on the data port; metrics and replicas on the admin
port. Knows paths and answer shapes; what they say comes from the callables in `Views`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from router import headers, openai
from router.errors import MethodNotAllowed, PointsmanError, UnknownModel, UnknownRoute
from router.transports.adapters import add_adapter_list
from router.transports.keypages import CALLER

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
    app, pages = web.Application(middlewares=[openai_errors]), _Pages(views)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/livez", pages.liveness)
    app.router.add_get("/readyz", pages.readiness)
    app.router.add_get("/version", pages.version)
    app.router.add_get("/v1/models", pages.models)
    app.router.add_get("/v1/models/{id:.+}", pages.model)
    return app


def admin_routes(views: Views) -> web.Application:
    """What the admin port serves."""
    app, pages = web.Application(middlewares=[openai_errors]), _Pages(views)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/readyz", pages.readiness)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/admin/replicas", pages.replicas)
    app.router.add_post("/admin/replicas/{id:.+}/drain", pages.drain)
    app.router.add_post("/admin/replicas/{id:.+}/undrain", pages.undrain)
    add_adapter_list(app, views.replicas)
    return app


def paths_of(app: web.Application) -> Callable[[str], bool]:
    """Is a path one of the app's, whatever its method?"""
    found = [resource.get_info() for resource in app.router.resources()]
    exact = frozenset(each["path"] for each in found if "path" in each)
    patterns = [each["pattern"] for each in found if "pattern" in each]
    return lambda path: path in exact or any(pattern.fullmatch(path) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class _Pages:
    """A method for each page."""

    views: Views

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def liveness(self, _: web.Request) -> web.Response:
        return _json(self.views.live())

    async def readiness(self, _: web.Request) -> web.Response:
        is_ready, detail = self.views.ready()
        return _json(detail, 200 if is_ready else 503)

    async def version(self, _: web.Request) -> web.Response:
        return _json({"version": self.views.version})

    async def models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": self._models(request)})

    async def model(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        for model in self._models(request):
            if model["id"] == id:
                return _json(model)
        raise UnknownModel(f"The model `{id}` does not exist.", param="model")

    def _models(self, request: web.Request) -> Sequence[Json]:
        """Those that the caller may use."""
        caller = request.get(CALLER)
        return [model for model in self.views.models() if caller is None or caller.may_use(str(model["id"]))]

    async def metrics(self, _: web.Request) -> web.Response:
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.views.metrics(), headers=headers)

    async def replicas(self, _: web.Request) -> web.Response:
        return _json({"replicas": self.views.replicas()})

    async def drain(self, request: web.Request) -> web.Response:
        return self._set_draining(request.match_info["id"], True)

    async def undrain(self, request: web.Request) -> web.Response:
        return self._set_draining(request.match_info["id"], False)

    def _set_draining(self, id: str, on: bool) -> web.Response:
        self.views.set_draining(id, on)
        return _json({"id": id, "draining": on})


@web.middleware
async def openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
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
    except web.HTTPException:
        raise
    except Exception:
        request.app.logger.exception("a page failed")
        response = _error(PointsmanError("The router failed to serve this request."))
    response.headers["x-request-id"] = headers.request_id(tuple((k.lower(), v) for k, v in request.headers.items()))
    return response


def _error(error: PointsmanError) -> web.Response:
    body, fields = openai.error_body(error), dict(error.headers)
    return web.Response(body=body, status=error.status, headers=fields, content_type="application/json")


def _json(body: Json, status: int = 200) -> web.Response:
    return web.json_response(body, status=status, dumps=lambda value: json.dumps(value, separators=(",", ":")))
