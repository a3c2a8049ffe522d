"""What routers tell each other of replicas' speeds, put together: lessons of this process's registry, its siblings on
this host by the feed, those on other hosts by the store. Composes and decides nothing; no request waits for it.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence

from router.prefix.knowledge import Knowledge
from router.replicas.exchange import Exchange
from router.replicas.lessons import Lesson, Lessons, Sizes
from router.replicas.registry import Registry
from router.store.connection import Store
from router.workers.sharing import Sharing

TELL_S = 1.0
# Between looks at the store, in turns; the first is made at once.
ROUND_TURNS = 5


class Learning:
    """One process's. `sharing` where it is one of several on this host, `store` where there is one."""

    def __init__(self, registry: Registry, knowledge: Knowledge, sharing: Sharing | None, store: Store | None) -> None:
        self.lessons = Lessons(registry.members, Sizes(knowledge.learned_size, knowledge.take_size))
        self._registry = registry
        self._sharing = sharing
        self._exchange = None if store is None else Exchange(store, self.lessons)

    async def run(self) -> None:
        """Until cancelled."""
        for turn in itertools.count():
            await asyncio.sleep(TELL_S)
            lessons = self.lessons.due(time.monotonic())
            if lessons and self._sharing is not None:
                self._sharing.learned(lessons)
            if self._exchange is not None:
                self._exchange.tell(lessons)
                if not turn % ROUND_TURNS:
                    await self._exchange.round()

    def heard(self, lessons: Sequence[Lesson]) -> None:
        """A sibling on this host tells."""
        self.lessons.take(lessons, time.monotonic())

    def shown(self) -> Mapping[str, Mapping[str, object]]:
        """For the replica table, by replica id."""
        return {
            member.replica.id: {"speed_source": str(member.speeds.source), "speed_samples": member.speeds.num_own}
            for member in self._registry.members()
        }

    def sources(self) -> Sequence[tuple[tuple[str, ...], float]]:
        """For the gauge."""
        return [((each.replica.id, str(each.speeds.source)), 1.0) for each in self._registry.members()]
