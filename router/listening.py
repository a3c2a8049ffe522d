"""The ports of one process besides the data port's own sockets: admin, gRPC, and WebSockets on the data port. Knows
settings and how each is opened; what is served there is handed in."""

import asyncio
import contextlib
import errno
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from aiohttp import web

from router.admission.gate import Gate
from router.admission.terms import terms
from router.config import ConfigError, Settings
from router.core import Headers, Outcome, Request, Standing, Surface
from router.errand import Errand
from router.naming import Names, parse_names
from router.ports import Clock, Flow, Reply
from router.store.connection import Store
from router.transports.asking import new_request
from router.transports.dialects.desk import Count, Dialects
from router.transports.engine_routes import parse_passed
from router.transports.responses.archive import Archive, KeepLimits
from router.transports.responses.desk import ResponseDesk
from router.transports.responses.following import Following
from router.transports.responses.here import AnyArchive, ArchiveHere
from router.transports.responses.runs import Runs
from router.transports.websocket.chat import ChatLimits
from router.transports.websocket.socket import SocketLimits
from router.transports.websocket.sockets import Sockets

Begin = Callable[[Request, Reply], Errand]


@dataclass(frozen=True, slots=True)
class Served:
    """What the gRPC port serves: requests, names, readiness."""

    begin: Begin
    models: Callable[[], Sequence[Mapping[str, object]]]
    is_ready: Callable[[], bool]
    clock: Clock


@dataclass(frozen=True, slots=True)
class LastReply:
    """A `ports.Reply` that asks its client to come back on another connection."""

    reply: Reply

    def bind(self, flow: Flow) -> None:
        self.reply.bind(flow)

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        self.reply.head(status, headers, (*own, ("connection", "close")), length)

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        self.reply.write(payload, framed)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        self.reply.end(outcome, is_complete=is_complete)


@contextlib.asynccontextmanager
async def open_admin(routes: web.Application, settings: Settings) -> AsyncIterator[None]:
    """The admin port, until the block is left. Raises ConfigError where it cannot be had."""
    runner = web.AppRunner(routes, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        with names_port(settings.admin_host, settings.admin_port, "--admin-port"):
            await web.TCPSite(runner, settings.admin_host, settings.admin_port).start()
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def open_grpc(settings: Settings, served: Served) -> AsyncIterator[None]:
    """The gRPC port where it is asked for, until the block is left. Raises ConfigError where it cannot be had."""
    if not settings.grpc:
        yield
        return
    # Not before it is wanted: gRPC takes 40 MB.
    from router.transports.grpc.calls import Calls
    from router.transports.grpc.kserve import KserveService
    from router.transports.grpc.server import GrpcAddress, Tls, grpc_port
    from router.transports.grpc.service import InferenceService

    pem = await asyncio.to_thread(_read_tls, settings)
    tls = Tls(pem["grpc_tls_key"], pem["grpc_tls_cert"], pem.get("grpc_tls_client_ca")) if pem else None
    address = GrpcAddress(settings.host, settings.grpc_port, is_shared=settings.workers > 1, tls=tls)
    calls = Calls(served.begin, served.clock, settings.request_timeout_s)
    service = InferenceService(calls, served.models)
    kserve = KserveService(calls, served.models, served.is_ready, version("pointsman"))
    async with contextlib.AsyncExitStack() as stack:
        with names_port(settings.host, settings.grpc_port, "--grpc-port"):
            port = grpc_port(address, service, kserve, served.is_ready, settings.max_body_bytes)
            await stack.enter_async_context(port)
        yield


def open_names(settings: Settings) -> Names:
    try:
        return parse_names(settings.model_alias, settings.fallback)
    except ValueError as error:
        raise ConfigError(f"The settings `model_alias` and `fallback` are wrong: {error}.") from None


def new_dialects(
    settings: Settings,
    begin: Begin,
    count: Count,
    responses: ResponseDesk,
    clock: Clock,
    refused: Callable[[int], None],
) -> Dialects:
    return Dialects(begin, count, responses, clock, settings.request_timeout_s, refused)


def new_responses(settings: Settings, store: Store | None, gate: Gate, begin: Begin, clock: Clock) -> ResponseDesk:
    """Responses are a tenant's, and kept in Redis where there is one."""
    limits = KeepLimits(settings.response_keep_s, settings.max_responses_bytes, settings.response_events_s)
    archive: AnyArchive = ArchiveHere(clock, limits) if store is None else Archive(store, limits)

    def ask(headers: Headers, body: bytes, standing: Standing | None) -> Request:
        now = clock()
        return new_request(Surface.CHAT, body, headers, now, now + settings.request_timeout_s, standing)

    def owner(headers: Headers) -> str:
        asked = terms(headers)
        caller = gate.callers.identify(asked.credential, time.time())
        return asked.tenant if caller.is_trusted and asked.tenant is not None else caller.tenant

    runs = Runs(archive, begin, ask, clock, lambda: gate.is_draining)
    return ResponseDesk(begin, archive, runs, Following(archive, runs.bell, clock), clock, owner)


def open_passed(settings: Settings) -> Sequence[str]:
    try:
        return parse_passed(settings.pass_through)
    except ValueError as error:
        raise ConfigError(f"The setting `pass_through` is wrong: {error}.") from None


def new_sockets(settings: Settings, begin: Begin, desk: ResponseDesk, clock: Clock) -> Sockets:
    limits = SocketLimits(max_message_bytes=settings.max_body_bytes)
    return Sockets(begin, desk, clock, limits, ChatLimits(settings.request_timeout_s), settings.websocket_origin)


@contextlib.contextmanager
def names_port(host: str, port: int, flag: str) -> Iterator[None]:
    """A port that cannot be had is a wrong setting."""
    try:
        yield
    except OSError as error:
        reason = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigError(f"The address {host}:{port} {reason}; choose another with {flag}.") from None


def _read_tls(settings: Settings) -> dict[str, bytes]:
    """The PEM files that the settings name, by setting; none where TLS is not asked for."""
    named = {
        "grpc_tls_key": settings.grpc_tls_key,
        "grpc_tls_cert": settings.grpc_tls_cert,
        "grpc_tls_client_ca": settings.grpc_tls_client_ca,
    }
    paths = {name: path for name, path in named.items() if path}
    if paths and not {"grpc_tls_key", "grpc_tls_cert"} <= set(paths):
        raise ConfigError("TLS on the gRPC port needs both `grpc_tls_cert` and `grpc_tls_key`.")
    found = {}
    for name, path in paths.items():
        try:
            found[name] = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"The setting `{name}` is wrong: {path} cannot be read ({error.strerror}).") from None
    return found
