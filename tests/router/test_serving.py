"""What the ports serve is what their OpenAPI documents say, and the other way round."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadtest.peers.process import free_port
from router import serving
from router.app import Router
from router.company import Company, company_routes
from router.config import ConfigError, Settings
from router.core import Surface
from router.supervisor import Supervisor
from router.transports.engine_routes import TOKEN_ROUTES
from router.transports.http import ClientConnection
from router.transports.openapi import ADMIN, DATA, INFERENCE, served_by
from tests.fakes import until
from tests.router.served import nobody, served


@pytest.fixture
def router(tmp_path: Path) -> Router:
    settings = Settings(replica=(nobody(),), state_dir=str(tmp_path), pass_through=("/v1/rerank",), queue_timeout_s=0.1)
    return Router(settings, logging.getLogger("tests.serving"))


@asynccontextmanager
async def open_data_port(router: Router) -> AsyncIterator[aiohttp.ClientSession]:
    async with router._open_port() as port:
        server = await asyncio.get_running_loop().create_server(lambda: ClientConnection(port), "127.0.0.1", 0)
        try:
            base = "http://{}:{}".format(*server.sockets[0].getsockname())
            async with aiohttp.ClientSession(base) as session:
                yield session
        finally:
            server.close()
            await until(lambda: not port.connections)


def test_every_route_of_the_data_port_is_described_and_every_described_one_is_there(router: Router) -> None:
    described = {(each.method, each.path) for each in DATA}
    there = served_by(serving.data_pages(router)) | {("POST", path) for path in (*Surface, *TOKEN_ROUTES)}
    assert there - described == set(), "without a description"
    assert described - there <= {(each.method, each.path) for each in INFERENCE}, "described, and not there"


async def test_what_is_described_besides_pages_is_answered(router: Router) -> None:
    """Those that the port serves itself are in no table: they are asked. A wrong body is known to be wrong."""
    async with open_data_port(router) as session:
        for each in INFERENCE:
            if each.method == "GET":
                async with session.ws_connect(each.path) as socket:
                    assert not socket.closed
                continue
            async with session.post(each.path, data=b"{") as response:
                assert (each.path, response.status) == (each.path, 400)
        async with session.get("/openapi.json") as response:
            paths = (await response.json())["paths"]
        assert set(paths) == {*(each.path for each in DATA), "/v1/rerank"}


async def test_the_document_shows_no_jobs_where_there_are_none(tmp_path: Path) -> None:
    router = Router(Settings(max_jobs=0, state_dir=str(tmp_path)), logging.getLogger("tests.serving"))
    async with served(serving.data_pages(router)) as url, aiohttp.ClientSession(url) as session:
        async with session.get("/openapi.json") as response:
            paths: dict[str, Any] = (await response.json())["paths"]
        assert "/v1/models" in paths
        assert not [path for path in paths if path.startswith(("/v1/files", "/v1/batches", "/v1/async"))]


def test_every_route_of_the_admin_port_is_described_and_every_described_one_is_there(router: Router) -> None:
    described = {(each.method, each.path) for each in ADMIN}
    one = served_by(serving.admin_pages(router))
    several = served_by(company_routes(Company(Supervisor(router.settings), router.keyring)))
    assert one - described == set()
    assert several - described == set()
    assert described == one | several


async def test_clients_that_come_all_at_once_are_not_sent_away_to_try_again_a_second_later(tmp_path: Path) -> None:
    """The kernel answers more of them than a socket's usual backlog holds, while our loop does something else."""
    settings = Settings(state_dir=str(tmp_path), port=free_port(), admin_port=free_port())
    router = Router(settings, logging.getLogger("tests.serving"))
    async with router._open_port() as port, router._listen(port):
        address = ("127.0.0.1", settings.port)
        clients = [socket.create_connection(address, timeout=20) for _ in range(200)]
        for client in clients:
            client.close()


def test_a_wrong_path_to_pass_on_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`pass_through` is wrong: `v1`"):
        Router(Settings(pass_through=("v1",), state_dir=str(tmp_path)), logging.getLogger("tests.serving"))
