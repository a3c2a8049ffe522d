"""Replicas that sleep: are they asleep, and wake one that is wanted. Knows vLLM's /is_sleeping and /wake_up, which our
engine has too; knows nothing of who wants what.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import aiohttp

from router.core import Replica, ReplicaState
from router.errors import UpstreamError
from router.ports import Clock
from router.replicas.fetch import fetch, open_session
from router.replicas.health import HAS_NO_SUCH_ROUTE
from router.spec import ReplicaSpec

# A model's weights may have to come back from disk.
WAKE_TIMEOUT_S = 120.0
# One that was told and still sleeps is told again after so long.
PAUSE_S = 5.0
log = logging.getLogger(__name__)


async def is_asleep(session: aiohttp.ClientSession, spec: ReplicaSpec, timeout_s: float) -> bool | None:
    """None where it knows no sleep. What it does not say counts as awake."""
    try:
        answer = await fetch(session, spec, "/is_sleeping", timeout_s)
        if answer.status in HAS_NO_SUCH_ROUTE:
            return None
        said = json.loads(answer.body) if answer.status == 200 else None
    except (UpstreamError, ValueError):
        return False
    return isinstance(said, dict) and said.get("is_sleeping") is True


@dataclass(eq=False, slots=True)
class Waker:
    """`on_woken(replica_id)`: it says that it is awake; a probe shall find out."""

    clock: Clock
    on_woken: Callable[[str], None]
    _told_at: dict[str, float] = field(default_factory=dict, init=False)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set, init=False)

    def wake_one(self, replicas: Iterable[Replica]) -> None:
        """Have one of these wake up that sleeps, unless one is just being woken."""
        now = self.clock()
        asleep = [replica for replica in replicas if replica.state is ReplicaState.ASLEEP]
        if not asleep or any(now - self._told_at.get(replica.id, -PAUSE_S) < PAUSE_S for replica in asleep):
            return
        chosen = min(asleep, key=lambda replica: self._told_at.get(replica.id, -1.0))
        self._told_at[chosen.id] = now
        task = asyncio.get_running_loop().create_task(self._wake(chosen))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wake(self, replica: Replica) -> None:
        spec = replica.spec
        log.info("%s sleeps and is wanted: it is told to wake up", replica.id)
        try:
            async with open_session() as session:
                answer = await fetch(session, spec, "/wake_up", WAKE_TIMEOUT_S, b"")
                if answer.status >= 300:
                    log.warning("%s does not wake up: status %d", replica.id, answer.status)
        except UpstreamError as error:
            log.warning("%s does not wake up: %s", replica.id, error)
        self.on_woken(replica.id)

    def __repr__(self) -> str:
        return f"<Waker {len(self._tasks)} being woken>"
