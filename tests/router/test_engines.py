"""The ports of engine replicas: held from the plan to the end."""

import socket
from collections.abc import AsyncIterator

import pytest

from router import engines
from router.engines import Engine


@pytest.fixture
async def planned() -> AsyncIterator[list[Engine]]:
    found = engines.plan(4, taken=())
    yield found
    await engines.stop(found)


def ports(found: list[Engine]) -> list[int]:
    return [port for engine in found for port in (engine.port, engine.grpc_port)]


async def test_all_ports_differ(planned: list[Engine]) -> None:
    assert len(set(ports(planned))) == 8


async def test_nobody_else_is_given_a_planned_port(planned: list[Engine]) -> None:
    for port in ports(planned):
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))


async def test_one_engine_listens_at_a_planned_port(planned: list[Engine]) -> None:
    address = ("127.0.0.1", planned[0].port)
    with socket.create_server(address), socket.create_connection(address), pytest.raises(OSError, match="in use"):
        socket.create_server(address)


async def test_a_port_of_the_router_is_not_planned() -> None:
    class AllButOne:
        """Refuses the first port that it is asked about."""

        refused: int | None = None

        def __contains__(self, port: object) -> bool:
            assert isinstance(port, int)
            if self.refused is None:
                self.refused = port
            return port == self.refused

    taken = AllButOne()
    found = engines.plan(1, taken)
    assert taken.refused is not None
    assert taken.refused not in ports(found)
    await engines.stop(found)


async def test_a_stopped_plan_gives_its_ports_back() -> None:
    found = engines.plan(1, taken=())
    await engines.stop(found)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", found[0].port))
