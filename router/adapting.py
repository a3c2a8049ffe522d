"""Adapters on all replicas, put together: the book where it is kept, the rollout over the registry, its pages.
Composes; decides nothing.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from aiohttp import web

from router.admission.bookfile import BookFile
from router.admission.opening import state_folder
from router.commons import Commons
from router.ports import BookStore
from router.replicas.member import Member
from router.replicas.registry import Registry
from router.replicas.rollout import LIST_POLL_S, LOOK_S, Rollout
from router.replicas.wanted import WantedBook
from router.store import names
from router.store.bookinredis import BookInRedis
from router.transports.adapters import Served, add_adapter_routes
from router.workers.sharing import Sharing

SETTLE_TIMEOUT_S, SETTLE_POLL_S = 1.0, 0.002


class Adapters:
    """One process's. `sharing` where it is one of several on this host: the one in the lowest row looks after them."""

    def __init__(self, commons: Commons, registry: Registry, sharing: Sharing | None) -> None:
        self._registry = registry
        self._sharing = sharing
        self.rollout = Rollout(registry.members, WantedBook(_store(commons)), time.monotonic, self._leads, self._relist)

    def add_routes(self, app: web.Application) -> None:
        add_adapter_routes(app, self.rollout, Served(self._base_models, self._adapters, self._settled))

    async def run(self) -> None:
        """Until cancelled."""
        await self.rollout.run()

    async def until_listed(self, name: str, deadline: float) -> None:
        """A name that is wanted may be on its way to replicas that have just come: wait for the first to have it."""
        look_at = 0.0
        while name in self.rollout.book.wanted.adapters and self._registry.find(name) is None:
            if (now := time.monotonic()) >= deadline:
                return
            if now >= look_at:
                look_at = now + LOOK_S
                await self.rollout.hasten(name)
            else:
                await asyncio.sleep(LIST_POLL_S)

    def shown(self, replica_id: str) -> Mapping[str, Mapping[str, str]]:
        """For the replica table."""
        found = self.rollout.on_replica(replica_id)
        return {name: {"state": each.state, "reason": each.reason} for name, each in found.items()}

    def counts(self) -> Sequence[tuple[tuple[str, str], float]]:
        """For metrics: by replica and state."""
        found: Counter[tuple[str, str]] = Counter()
        for replica in self._registry.replicas() if self.rollout.book.wanted.adapters else ():
            found.update((replica.id, each.state.value) for each in self.rollout.on_replica(replica.id).values())
        return [(labels, float(count)) for labels, count in found.items()]

    def _base_models(self) -> Sequence[str]:
        return [pool.model for pool in self._registry.pools()]

    def _adapters(self) -> Mapping[str, str]:
        cards = self._registry.models()
        found = {str(card["id"]): self._registry.find(str(card["id"])) for card in cards if card["parent"] is not None}
        return {name: pool[0].model for name, pool in found.items() if pool is not None}

    def _relist(self, member: Member) -> None:
        if self._sharing is None:
            member.relist_soon()
        else:
            self._sharing.relisted(member)

    def _leads(self) -> bool:
        if self._sharing is None:
            return True
        desk = self._sharing.desk
        return desk.number == min(filter(desk.board.is_live, range(desk.board.num_rows)), default=desk.number)

    async def _settled(self) -> None:
        """The feed's word reaches all workers in the same moment, or nearly so."""
        if self._sharing is None or (own := self._sharing.desk.row) is None:
            return
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                applied = own.applied
                while any(row.applied < applied for row in self._sharing.desk.board.live_rows()):  # noqa: ASYNC110
                    await asyncio.sleep(SETTLE_POLL_S)
        except TimeoutError:
            pass


def _store(commons: Commons) -> BookStore:
    """Redis where hosts share one; else a file beside the private one's, which all processes of this host see."""
    settings = commons.settings
    if commons.store is not None and not commons.is_private:
        return BookInRedis(commons.store, names.ADAPTERS)
    return BookFile(state_folder(settings, os.environ) / f"adapters-{settings.port}.json")
