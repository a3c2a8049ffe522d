"""One replica's feed, from batches to changes of the index. Knows a ledger and how far it can be trusted; nothing of
sockets. What cannot be true of this replica ends the trust, never a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from router.prefix.changes import Change, Emptied
from router.prefix.events import BadEvents, Batch, Event, decode
from router.prefix.ledger import Distrust, Ledger


class FeedState(StrEnum):
    """How well a replica tells us what it holds."""

    ABSENT = "absent"
    SYNCING = "syncing"
    LATE = "late"
    SYNCED = "synced"
    DISTRUSTED = "distrusted"


class FeedStatus(msgspec.Struct, frozen=True):
    """`reason` says why it is not SYNCED, for operators."""

    state: FeedState = FeedState.ABSENT
    reason: str = ""


Tell = Callable[[Sequence[Change]], None]


@dataclass(eq=False, slots=True)
class Follower:
    """What a source speaks to. `tell` takes changes in their order, `on_status` is called when the status changed;
    `rank` is the data-parallel rank that we mean to hear, None: any."""

    ledger: Ledger
    tell: Tell
    on_status: Callable[[FeedStatus], None]
    rank: int | None = None
    status: FeedStatus = field(default_factory=FeedStatus)
    num_batches: int = 0
    num_bad: int = 0
    num_resyncs: int = 0

    def hear(self, payload: bytes) -> None:
        """One msgpack batch. Raises Distrust, after all that was believed is forgotten."""
        try:
            self.take(decode(payload))
        except BadEvents as error:
            self.num_bad += 1
            self._forget(f"a batch cannot be understood: {error}")

    def take(self, batch: Batch) -> None:
        """Raises Distrust, after all that was believed is forgotten."""
        self.num_batches += 1
        self._check_rank(batch.rank)
        self.apply(batch.events)

    def apply(self, events: Sequence[Event]) -> None:
        """Raises Distrust, after all that was believed is forgotten."""
        try:
            changes = self.ledger.apply(events)
        except Distrust as distrust:
            self.distrust(str(distrust))
            raise
        if changes:
            self.tell(changes)
        if any(isinstance(change, Emptied) for change in changes) and self.status.state is FeedState.LATE:
            self._become(FeedState.SYNCED)

    def bad(self, reason: str) -> None:
        """Something came that says nothing: what it may have said to be gone is not believed in any more."""
        self.num_bad += 1
        self._forget(reason)

    def reset(self, reason: str) -> None:
        """Nothing that was said before counts any more."""
        self.num_resyncs += 1
        self.tell(self.ledger.clear())
        self._become(FeedState.SYNCING, reason)

    def synced(self, *, is_whole: bool, reason: str = "") -> None:
        """From here on nothing is missed; `is_whole`: nor was anything before."""
        self._become(FeedState.SYNCED if is_whole else FeedState.LATE, "" if is_whole else reason)

    def distrust(self, reason: str) -> None:
        self.tell(self.ledger.clear())
        self._become(FeedState.DISTRUSTED, reason)

    def lose(self, reason: str) -> None:
        """It cannot be heard."""
        self.tell(self.ledger.clear())
        self._become(FeedState.ABSENT, reason)

    def _forget(self, reason: str) -> None:
        self.tell(self.ledger.clear())
        self._become(FeedState.LATE, reason)

    def _check_rank(self, rank: int | None) -> None:
        if self.rank is not None and rank is not None and rank != self.rank:
            self.distrust(f"it is the feed of data-parallel rank {rank}, not {self.rank}")
            raise Distrust(self.status.reason)

    def _become(self, state: FeedState, reason: str = "") -> None:
        status = FeedStatus(state, reason)
        if status != self.status:
            self.status = status
            self.on_status(status)

    def __repr__(self) -> str:
        return f"<Follower {self.status.state} {self.ledger!r}>"
