"""How fast a line moves. Knows the gaps between places given; knows nothing of who waits."""

from dataclasses import dataclass, field

# Each gap moves the mean by this share: the last ten or so places count.
_NEWEST_SHARE = 0.1
ENOUGH_GAPS = 10


@dataclass(eq=False, slots=True)
class Pace:
    """The mean gap between places given to waiters, in seconds, over the time that anybody waited."""

    num_gaps: int = 0
    _mean_gap_s: float | None = field(default=None, init=False)
    _last_at: float = field(default=0.0, init=False)

    def began(self, now: float) -> None:
        """Somebody waits where nobody did: the time before says nothing of the pace."""
        self._last_at = now

    def gave(self, now: float) -> None:
        """A place was given to a waiter."""
        gap_s, self._last_at = now - self._last_at, now
        self.num_gaps += 1
        known = self._mean_gap_s
        self._mean_gap_s = gap_s if known is None else known + _NEWEST_SHARE * (gap_s - known)

    @property
    def is_known(self) -> bool:
        """Have so many places been given that a refusal may rest on it?"""
        return self.num_gaps >= ENOUGH_GAPS

    def seconds_for(self, num_waiting: int, now: float) -> float | None:
        """When that many will have had their place; None before the first. A line that has stopped is as slow as its
        standstill is long."""
        if self._mean_gap_s is None:
            return None
        return num_waiting * max(self._mean_gap_s, now - self._last_at)
