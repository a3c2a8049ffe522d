"""What the ports of one process serve besides inference: their pages, and engines' own routes. Puts together what a
running router's rooms offer; decides nothing."""

import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from aiohttp import web

from router import pages
from router.admission.terms import terms
from router.core import Headers, Pool
from router.explaining import add_explain_route, explainer
from router.jobs.operating import add_operator_routes
from router.jobs.pages import add_job_routes
from router.transports import openapi
from router.transports.engine_routes import EngineRoutes
from router.transports.indexer import add_indexer_routes
from router.transports.keypages import add_key_routes, guard
from router.transports.responses.pages import add_response_routes
from router.transports.web import Views, admin_routes, data_routes, paths_of

if TYPE_CHECKING:
    from router.app import Router


def data_pages(router: "Router") -> web.Application:
    app = data_routes(_views(router))
    app.middlewares.append(guard(router.keyring))
    router.adapters.add_routes(app)
    add_response_routes(app, router.responses)
    if router.backlog is not None:
        add_job_routes(app, router.backlog.pages)
    besides = [(each.method, each.path) for each in openapi.INFERENCE]
    openapi.add_openapi_route(app, openapi.DATA, version("pointsman"), besides, router.passed)
    return app


def admin_pages(router: "Router") -> web.Application:
    app = admin_routes(_views(router))
    app.middlewares.append(guard(router.keyring))
    add_key_routes(app, router.keyring)
    if router.backlog is not None:
        add_operator_routes(app, router.backlog.pages)
    add_indexer_routes(app, pages.indexer(router), lambda: pages.export(router), lambda: pages.lessons(router))
    add_explain_route(app, explainer(router))
    openapi.add_openapi_route(app, openapi.ADMIN, version("pointsman"))
    return app


def engine_routes(router: "Router", data: web.Application) -> EngineRoutes:
    """Besides `data`'s pages."""

    def admit(headers: Headers, model: str) -> None:
        callers = router.keyring.callers
        callers.identify(terms(headers).credential, time.time()).check_model(model)

    async def find(model: str, deadline: float) -> Pool:
        pool, _ = router.registry.find(model) or await router.known(model, deadline)
        return pool

    return EngineRoutes(
        begin=router.proxy.begin,
        find=find,
        pools=router.registry.pools,
        admit=admit,
        prompts=router.prompts,
        names=router.names,
        clock=time.monotonic,
        timeout_s=router.settings.request_timeout_s,
        refused=router.refused,
        passed=router.passed,
        ours=paths_of(data),
    )


def _views(router: "Router") -> Views:
    return Views(
        version=version("pointsman"),
        models=router.models,
        live=lambda: {"loop_lag_ms": round(router.lag_s * 1e3, 1)},
        ready=lambda: pages.readiness(router),
        replicas=lambda: pages.replica_rows(router),
        set_draining=lambda id, on: pages.set_draining(router.registry, id, on),
        metrics=router.metrics.render,
    )
