"""All that is known of what replicas hold, in one place: the index, the feeds that fill it, and how far to trust it.

The composition root tells it which replicas there are and what became of requests; it knows no registry and no sockets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router.core import Lease, Pool, Replica, Usage
from router.prefix.changes import Change, apply
from router.prefix.feeds import FeedAddress, Feeds
from router.prefix.follower import FeedStatus
from router.prefix.index import BlockIndex
from router.prefix.knowledge import Knowledge


def _ignore(*_: object) -> None:
    """What nobody listens to."""


@dataclass(eq=False, slots=True)
class Caches:
    """`listens` is False in a process that another one tells what it heard. `on_changes(replica_id, changes)` and
    `on_status(replica_id, status)` hear the same as the index and the knowledge, after them."""

    index: BlockIndex
    has_tokenizer: Callable[[Pool], bool]
    listens: bool = True
    on_changes: Callable[[str, Sequence[Change]], None] = _ignore
    on_status: Callable[[str, FeedStatus], None] = _ignore
    knowledge: Knowledge = field(init=False)
    feeds: Feeds = field(init=False)

    def __post_init__(self) -> None:
        self.knowledge = Knowledge(self.index, self.has_tokenizer)
        self.feeds = Feeds(self.tell, self.tell_status)

    async def listen(self) -> None:
        """Hear the feeds until cancelled."""
        await self.feeds.run()

    def identified(self, replica: Replica, pool: Pool) -> None:
        """What it serves is known, perhaps anew."""
        self.knowledge.identified(replica)
        if self.listens:
            address = FeedAddress.of(replica.spec, replica.engine)
            self.feeds.follow(replica.id, replica.spec, address, pool.block_size)

    def lost(self, replica_id: str) -> None:
        """It failed or is gone, and what it had cached with it."""
        self.index.remove(replica_id)
        self.knowledge.forget(replica_id)
        self.feeds.lost(replica_id)

    def learners(self) -> "tuple[Callable[[Lease, float], None], Callable[[Lease, Usage, float], None]]":
        """Who is told of each attempt's end: that it failed, and that it was answered."""
        return self.knowledge.failed, self.knowledge.answered

    def tell(self, replica_id: str, changes: Sequence[Change]) -> None:
        """It told of these."""
        for change in changes:
            apply(self.index, replica_id, change)
        self.on_changes(replica_id, changes)

    def tell_status(self, replica_id: str, status: FeedStatus) -> None:
        self.knowledge.told(replica_id, status)
        self.on_status(replica_id, status)

    def statuses(self) -> Mapping[str, FeedStatus]:
        """Of those that have a feed, by replica id."""
        return {id: follower.status for id, follower in self.feeds.followers().items()}

    def sweep(self, now: float, replicas: Iterable[Replica]) -> None:
        """Once a second: what did not come true is taken back, and who is gone is listened to no more."""
        there = {replica.id: replica for replica in replicas}
        self.knowledge.sweep(now, there)
        self.feeds.keep(there)

    def __repr__(self) -> str:
        return f"<Caches {self.index!r} {self.feeds!r}>"
