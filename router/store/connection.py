"""The connection to Redis: scripts by their hash, time limits, and a breaker round all of it. Knows Redis' errors and
versions; knows no keys but its probe's, and nothing of queues.

Nobody waits longer than `timeout_s`. After a failure every call fails at once until a probe, which writes, has
succeeded; probes come at growing, jittered intervals, so that many routers do not come back in one moment. A caller
that is cancelled leaves its command to end by itself: a command that is cut off takes its connection with it.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    NoScriptError,
    RedisError,
)

from router.store import names
from router.store.errors import StoreAway, StoreUnfit

OLDEST_VERSION = (6, 2)
TIMEOUT_S = 0.2
# Between probes while it is away: the first, then twice as long each time, each with up to half of itself more.
FIRST_PROBE_S, MOST_PROBE_S = 0.25, 5.0
CONNECT_TIMEOUT_S = 2.0
PING_S = 1.0
STOP_POLL_S = 0.2
log = logging.getLogger(__name__)

Client = Any  # redis-py's two clients have no type in common


class StoreState(Enum):
    """STARTING -> UP <-> AWAY; UNFIT is reached from STARTING or AWAY and left like AWAY."""

    STARTING = "starting"
    UP = "up"
    AWAY = "away"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Script:
    """Lua text and its hash."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode()).hexdigest())


@dataclass(eq=False, slots=True)
class Store:
    """`url` as redis-py takes it: redis://, rediss:// or unix://, user and password included. `reason` is why it is not
    up. `on_change(is_up)` is told of each change."""

    url: str
    timeout_s: float = TIMEOUT_S
    random: Callable[[], float] = random.random
    state: StoreState = StoreState.STARTING
    reason: str = "not asked yet"
    num_losses: int = 0
    version: str = ""
    on_change: Callable[[bool], None] = lambda _: None
    _client: Client | None = field(default=None, init=False)
    _running: set["asyncio.Task[Any]"] = field(default_factory=set, init=False)
    _lost: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def is_up(self) -> bool:
        return self.state is StoreState.UP

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect, and come back whenever it was lost, until the block is left. The block begins at once."""
        keeping = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            await stopped(keeping)
            await self._close()

    async def probe_now(self) -> None:
        """One try to connect. Raises StoreAway or StoreUnfit."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._client is None:
                    self._client = await self._connect()
                # What cannot be written to (a replica, a full one) is of no use.
                await self._client.set(names.PROBE + f"{self.random():.6f}", b"1", px=1000)
        except StoreUnfit:
            await self._drop_client()
            raise
        except Exception as error:
            await self._drop_client()
            raise _translated(error) from None

    async def wait_up(self, timeout_s: float) -> None:
        """For who cannot do without. Raises StoreAway."""
        async with asyncio.timeout(timeout_s):
            while self.state is StoreState.STARTING:  # noqa: ASYNC110  (for commands, once)
                await asyncio.sleep(0.01)
        if not self.is_up:
            raise StoreAway(self.reason)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """What the script returns. Raises StoreAway."""
        return await self._shielded(self._run_script(script, keys, arguments))

    async def call(self, *words: Any) -> Any:
        """What one command returns. Raises StoreAway."""
        return await self._shielded(self._call(words))

    async def _shielded(self, command: Any) -> Any:
        if not self.is_up:
            command.close()
            raise StoreAway(self.reason)
        task = asyncio.get_running_loop().create_task(self._guarded(command))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have been cancelled: then nobody else looks at it

    async def _guarded(self, command: Any) -> Any:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await command
        except Exception as error:
            translated = _translated(error)
            self._lose(translated)
            raise StoreAway(str(translated)) from None

    async def _run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        client = self._client
        assert client is not None  # it is up
        try:
            return await client.evalsha(script.sha, len(keys), *keys, *arguments)
        except NoScriptError:  # it was restarted, or its cache flushed
            return await client.eval(script.text, len(keys), *keys, *arguments)

    async def _call(self, words: Sequence[Any]) -> Any:
        client = self._client
        assert client is not None  # it is up
        return await client.execute_command(*words)

    async def _keep(self) -> None:
        wait_s = FIRST_PROBE_S
        while True:
            try:
                await self.probe_now()
            except (StoreAway, StoreUnfit) as error:
                self._lose(error)
                await asyncio.sleep(wait_s * (1.0 + 0.5 * self.random()))
                wait_s = min(2.0 * wait_s, MOST_PROBE_S)
            else:
                self._gain()
                await self._wait_lost()
                await self._drop_client()
                wait_s = FIRST_PROBE_S
                await asyncio.sleep(wait_s * (1.0 + 0.5 * self.random()))

    async def _wait_lost(self) -> None:
        """It is asked now and then, so that its end is known where nobody else asks."""
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(PING_S):
                    await self._lost.wait()
            except TimeoutError:
                with contextlib.suppress(StoreAway):
                    await self.call("PING")

    def _gain(self) -> None:
        self._lost.clear()
        was, self.state, self.reason = self.state, StoreState.UP, ""
        if was is not StoreState.UP:
            log.info("the store is up", extra={"fields": {"version": self.version}})
            self.on_change(True)

    def _lose(self, error: Exception) -> None:
        """One line for each loss, not for each call that fails by it."""
        was = self.state
        self.state = StoreState.UNFIT if isinstance(error, StoreUnfit) else StoreState.AWAY
        self.reason = str(error)
        self._lost.set()
        if was is not self.state and was is not StoreState.AWAY:
            self.num_losses += 1
            log.warning("the store is away, this router goes on alone: %s", error)
        if was is StoreState.UP:
            self.on_change(False)

    async def _connect(self) -> Client:
        """Raises StoreUnfit, or what redis-py raises."""
        options: dict[str, Any] = {
            "socket_timeout": self.timeout_s,
            "socket_connect_timeout": self.timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        client = Redis.from_url(self.url, **options)
        try:
            info = await client.info("server")
            found = str(info.get("redis_version", ""))
            if _numbers(found) < OLDEST_VERSION:
                oldest = ".".join(map(str, OLDEST_VERSION))
                raise StoreUnfit(f"The store is Redis {found or 'of no version'}; it must be {oldest} or newer.")
            self.version = found
            if info.get("redis_mode") != "cluster":
                return client
        except BaseException:
            await client.aclose()
            raise
        await client.aclose()
        return RedisCluster.from_url(
            self.url, **options | {"retry": Retry(NoBackoff(), 1)}
        )  # one, for a slot that moved

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.aclose()

    async def _close(self) -> None:
        """What runs may end, within its time."""
        if self._running:
            await asyncio.wait(self._running, timeout=self.timeout_s)
        await self._drop_client()

    def __repr__(self) -> str:
        return f"<Store {self.state.name}{f' ({self.reason})' if self.reason else ''}>"


async def stopped(task: "asyncio.Task[Any]") -> None:
    """Cancel it until it has ended: a library below may take one cancel for its own timeout."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=STOP_POLL_S)


def _translated(error: Exception) -> Exception:
    if isinstance(error, StoreAway | StoreUnfit):
        return error
    words = str(error)
    is_refused = "username-password" in words or words.startswith(("WRONGPASS", "NOAUTH", "NOPERM"))
    if is_refused or isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return StoreUnfit(f"The store does not let us in: {error}.")
    if isinstance(error, TimeoutError):
        return StoreAway("it does not answer in time")
    if isinstance(error, RedisError | OSError | ValueError):
        return StoreAway(f"{type(error).__name__}: {error}")
    return StoreAway(f"it answers what is not Redis: {error!r}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
