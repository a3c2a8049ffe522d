"""What operators see of several workers: one `/metrics`, one replica table, one readiness, for all of them. Reads the
supervisor's reports; passes on what is asked of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router import pages
from router.admission.keyring import Keyring
from router.app import Router
from router.commons import NONE
from router.config import Settings
from router.core import Headers
from router.errors import PointsmanError
from router.explaining import add_explain_route
from router.jobs.operating import add_operator_routes
from router.jobs.pages import JobPages
from router.listening import open_admin
from router.prefix.indexer import Indexer, instances_of
from router.supervisor import RestartFailed, Supervisor
from router.transports.indexer import add_indexer_routes
from router.transports.keypages import add_key_routes, guard
from router.transports.openapi import ADMIN, add_openapi_route
from router.transports.web import UnknownReplica, Views, admin_routes
from router.workers.figures import Totals, merge_replicas, render
from router.workers.frames import Family


@dataclass(frozen=True, slots=True)
class Front:
    """A router of one process or of several, as commands have it. `run(stop, on_open)` raises ConfigError where a port
    cannot be had; `ready()` is (is it ready, detail); `restart()` replaces the processes one by one, None where
    there is only the one."""

    run: Callable[[asyncio.Event, Callable[[], None]], Coroutine[Any, Any, None]]
    ready: Callable[[], tuple[bool, Mapping[str, object]]]
    models: Callable[[], Sequence[Mapping[str, object]]]
    restart: Callable[[], None] | None = None


def open_front(settings: Settings, logger: logging.Logger) -> Front:
    """Raises ConfigError for settings that name what is not there, before any process is started."""
    router = Router(settings, logger)
    if settings.workers == 1:
        return Front(router.run, lambda: pages.readiness(router), router.models)
    # The private server is the supervisor's; to its workers it is one like any other.
    server = router.commons.server
    supervisor = Supervisor(replace(settings, redis=NONE if router.commons.store is None else router.commons.store.url))
    store = router.commons.store
    company = Company(supervisor, router.keyring, None if router.backlog is None else router.backlog.pages)

    async def run(stop: asyncio.Event, on_open: Callable[[], None]) -> None:
        private = server.opened() if server is not None else contextlib.nullcontext()
        asked = store.opened() if store is not None else contextlib.nullcontext()
        async with private, asked, open_admin(company_routes(company), settings):
            await supervisor.run(stop, on_open)

    return Front(run, company.ready, company.models, supervisor.restart_soon)


class Unexplained(PointsmanError):
    status = 503
    type = "service_unavailable"
    code = "unexplained"


class RestartRefused(PointsmanError):
    status = 500
    code = "restart_failed"


def company_routes(company: "Company") -> web.Application:
    """The admin port's routes. What they show is asked of the workers with each question."""
    views = Views(
        version=version("pointsman"),
        models=company.models,
        live=lambda: {},
        ready=company.ready,
        replicas=company.replicas,
        set_draining=company.check_replica,
        metrics=company.metrics,
    )
    app = admin_routes(views)
    app.middlewares.append(guard(company.keyring))
    app.middlewares.append(company.middleware())
    add_key_routes(app, company.keyring)
    if company.jobs is not None:
        add_operator_routes(app, company.jobs)
    add_indexer_routes(app, company.indexer(), company.export, company.lessons)
    add_explain_route(app, company.explain)
    app.router.add_post("/admin/workers/restart", company.restart)
    add_openapi_route(app, ADMIN, views.version)
    return app


class Company:
    """A method for each page; `jobs` has those of webhooks."""

    def __init__(self, supervisor: Supervisor, keyring: Keyring, jobs: JobPages | None = None) -> None:
        self._supervisor = supervisor
        self.keyring = keyring
        self.jobs = jobs

    def indexer(self) -> Indexer:
        """What the feed knows of caches, for others to ask."""
        supervisor = self._supervisor
        return Indexer(
            supervisor.questions.match, lambda: instances_of(self.replicas()), supervisor.settings.index_bytes
        )

    async def export(self) -> bytes:
        """What the feed knows of caches, for a router that begins."""
        return await self._supervisor.questions.export()

    async def lessons(self) -> bytes:
        """What workers have learned of replicas, likewise."""
        return await self._supervisor.questions.lessons()

    async def explain(self, body: bytes, headers: Headers) -> tuple[int, bytes]:
        """By one worker: they know nearly the same."""
        answer = await self._supervisor.questions.explain(body, headers)
        if answer is None:
            raise Unexplained("No worker says what it would decide; ask again.", retry_after_s=1.0)
        return answer

    def middleware(self) -> Middleware:
        """Fresh reports before a page is made, and an order in force before it is answered."""

        @web.middleware
        async def ask_first(request: web.Request, handler: Handler) -> web.StreamResponse:
            await self._supervisor.refresh()
            response = await handler(request)
            *_, verb = request.path.split("/")
            if verb in ("drain", "undrain") and response.status == 200:
                await self._supervisor.set_draining(request.match_info["id"], verb == "drain")
            return response

        return ask_first

    def models(self) -> Sequence[Mapping[str, object]]:
        return next((report.models for report in self._supervisor.reports if report.models), [])

    def replicas(self) -> Sequence[Mapping[str, object]]:
        return merge_replicas(self._supervisor.reports)

    def ready(self) -> tuple[bool, Mapping[str, object]]:
        """Ready where any worker is: it is such a one that a client will get."""
        supervisor = self._supervisor
        reports = sorted(supervisor.reports, key=lambda report: not report.is_ready)
        is_ready = bool(reports) and reports[0].is_ready and not supervisor.is_stopping
        detail = dict(reports[0].readiness) if reports else {}
        detail |= {
            "draining": supervisor.is_stopping,
            "workers_serving": supervisor.num_serving,
            "workers_total": supervisor.settings.workers,
        }
        return is_ready, detail

    def metrics(self) -> bytes:
        supervisor, totals = self._supervisor, Totals()
        totals.add(supervisor.departed.families())
        for report in supervisor.reports:
            totals.add(report.families)
        totals.add(
            [
                _single("pointsman_workers", "gauge", "Processes that serve.", supervisor.num_serving),
                _single("pointsman_worker_deaths", "counter", "Processes that died.", supervisor.num_deaths),
            ]
        )
        return render(totals)

    def check_replica(self, id: str, on: bool) -> None:
        """Whether there is such a replica. The order itself goes out once the answer is known (`middleware`)."""
        known = [str(row["id"]) for row in self.replicas()]
        if id not in known:
            raise UnknownReplica(f"There is no replica `{id}`; there are: {', '.join(known)}.", param="id")

    async def restart(self, _: web.Request) -> web.Response:
        """Answers when all are replaced."""
        try:
            await self._supervisor.restart_all()
        except RestartFailed as error:
            raise RestartRefused(str(error)) from None
        return web.json_response({"workers": self._supervisor.num_serving})


def _single(name: str, kind: str, help: str, value: float) -> Family:
    return Family(name, kind, help, [(name + ("_total" if kind == "counter" else ""), {}, float(value))])
