"""Opens a rig for a contract: clients, the station, replicas; and sees to it that nothing is left over at the end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import uvloop

from router.spec import ReplicaSpec
from tests.contracts.adapters import REPLIES, UPSTREAMS, HttpClient, HttpReplies, HttpUpstreams
from tests.contracts.hostile import Call, HostileReplica, Script
from tests.fakes import Station, until
from tests.router.nouns import FakeClock

Factory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Factory]:
    """The router runs on uvloop, whose transports differ from asyncio's in detail: each contract holds on both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every upstream behind HTTP's reply, and every other reply before HTTP's upstream: each pair would be too many."""
    if "rigs" not in metafunc.fixturenames:
        return
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    pairs = [("http", upstream) for upstream in UPSTREAMS if upstream == "http" or "over_http" not in marks]
    for mark in metafunc.definition.iter_markers("every_reply"):
        pairs += [(reply, "http") for reply in REPLIES if reply not in ("http", *mark.kwargs.get("but", ()))]
    ids = [f"{reply}-{upstream}" for reply, upstream in pairs]
    metafunc.parametrize(("reply", "upstream"), pairs, ids=ids, indirect=True)


@dataclass(eq=False)
class Rig:
    """One way in, one way out, and the station between them."""

    station: Station
    replies: HttpReplies
    upstreams: HttpUpstreams
    script: Script
    replicas: Sequence[HostileReplica]

    async def connect(self) -> HttpClient:
        return await self.replies.connect()

    async def ask(self, *headers: tuple[str, str], **fields: object) -> HttpClient:
        """A new client with a chat request under way."""
        client = await self.connect()
        client.ask(*headers, **fields)
        return client

    async def call(self, number: int = 0) -> Call:
        return await self.script.call(number)

    def tick(self, seconds: float) -> None:
        self.station.tick(seconds)

    async def until_idle(self) -> None:
        """Wait until nobody is served any more."""
        await until(lambda: not self.station.left_over and not self.upstreams.num_busy)


class Rigs:
    """Opens rigs, and closes them with the test. Settings are the station's; `port` is what the transport takes."""

    def __init__(self, stack: AsyncExitStack, reply: str, upstream: str) -> None:
        self._stack = stack
        self._reply = reply
        self._upstream = upstream
        self.rigs: list[Rig] = []

    async def open(
        self,
        *,
        num_replicas: int = 2,
        num_deaf: int = 0,
        absent: Sequence[ReplicaSpec] = (),
        port: object = None,
        **settings: object,
    ) -> Rig:
        clock, script = FakeClock(), Script()
        upstreams = UPSTREAMS[self._upstream](clock)
        opening = [upstreams.replica(script) for _ in range(num_replicas)]
        opening += [upstreams.deaf_replica(script) for _ in range(num_deaf)]
        replicas = [await self._stack.enter_async_context(each) for each in opening]
        specs = [*(replica.spec for replica in replicas), *absent]
        station = Station(upstreams.upstream, specs, clock=clock, **settings)  # type: ignore[arg-type]
        self._stack.push_async_callback(upstreams.upstream.close)
        replies = REPLIES[self._reply](station, **({} if port is None else {"limits": port}))
        await self._stack.enter_async_context(replies.serving())
        self.rigs.append(Rig(station, replies, upstreams, script, replicas))
        return self.rigs[-1]


@pytest.fixture
def reply(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def rigs(reply: str, upstream: str) -> AsyncIterator[Rigs]:
    """Every contract ends with every count at zero, and with no error that nobody caught."""
    broken: list[Mapping[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    async with AsyncExitStack() as stack:
        rigs = Rigs(stack, reply, upstream)
        yield rigs
    for rig in rigs.rigs:
        await rig.until_idle()
    assert not broken
