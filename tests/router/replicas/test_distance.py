import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.replicas.distance import NUM_SAMPLES, Distance, measure
from tests.router.nouns import make_replica


@given(st.lists(st.floats(1e-6, 2.0), min_size=1, max_size=20))
def test_the_least_of_the_last_few_counts_and_never_more_than_was_measured(samples: list[float]) -> None:
    distance, replica = Distance(), make_replica()
    for seconds in samples:
        distance.learn(seconds, replica)
    least = min(samples[-NUM_SAMPLES:])
    assert distance.round_trip_s == least
    assert least - 0.0010001 <= replica.round_trip_s <= least


def test_a_slow_moment_does_not_count_and_a_longer_way_does_after_a_few_samples() -> None:
    distance, replica = Distance(), make_replica()
    for seconds in (0.02, 0.5):
        distance.learn(seconds, replica)
    assert replica.round_trip_s == 0.02
    for _ in range(NUM_SAMPLES):
        distance.learn(0.08, replica)
    assert replica.round_trip_s == 0.08
    assert repr(distance) == "<Distance 80.00 ms>"


def test_differences_within_a_data_centre_are_no_reason_to_prefer_one() -> None:
    distance, replica = Distance(), make_replica(round_trip_s=0.5)
    distance.learn(0.0009, replica)
    assert (replica.round_trip_s, distance.round_trip_s) == (0.0, 0.0009)


def test_what_was_said_stands_whatever_is_measured() -> None:
    distance, replica = Distance(said_s=0.0625), make_replica()
    distance.tell(replica)
    distance.learn(0.001, replica)
    assert (replica.round_trip_s, distance.round_trip_s) == (0.0625, 0.0625)


def test_what_nobody_has_measured_counts_as_nothing() -> None:
    distance, replica = Distance(), make_replica()
    distance.tell(replica)
    distance.adopt(None, replica)
    assert (replica.round_trip_s, distance.round_trip_s, repr(distance)) == (0.0, None, "<Distance unknown>")


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_opening_a_connection_says_how_far_it_is_and_asks_nothing(scheme: str) -> None:
    heard: list[bytes] = []
    closed = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()
        closed.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        seconds = await measure(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", 30.0)
        async with asyncio.timeout(30):
            await closed.wait()
    assert seconds is not None
    assert 0.0 < seconds < 30.0
    assert heard == [b""]


async def test_of_several_addresses_the_first_that_answers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may stand for an address of IPv6 where nobody listens, and one of IPv4."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        places = [taken.getsockname(), server.sockets[0].getsockname()]

        async def getaddrinfo(*_: object, **__: object) -> list[object]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        async with server:
            assert await measure("http://replica.example:8000", 30.0) is not None


async def test_the_kernel_is_asked_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it is the time until the connection is there."""
    monkeypatch.delattr(socket, "TCP_INFO")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        seconds = await measure(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 30.0)
    assert seconds is not None
    assert 0.0 < seconds < 30.0


async def test_where_nobody_listens_nothing_is_measured() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else can have it meanwhile
        assert await measure(f"http://127.0.0.1:{taken.getsockname()[1]}", 30.0) is None
