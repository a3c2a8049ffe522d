"""How fast a line moves, and how long its requests are served. Knows gaps and times; knows nothing of who waits."""

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


# Nineteen in twenty of exponential times are shorter than so many means.
_LONG_MEANS = 3.0


@dataclass(eq=False, slots=True)
class Service:
    """How long requests hold their place, in seconds; 0 while that is not known."""

    mean_s: float = 0.0
    _num_ended: int = field(default=0, init=False)

    def ended(self, seconds: float) -> None:
        """One was served to its end."""
        self._num_ended += 1
        self.mean_s += (seconds - self.mean_s) * max(_NEWEST_SHARE, 1.0 / self._num_ended)

    def share_ended_within(self, seconds: float) -> float:
        """Of the requests that hold a place now, those that will have ended by then; 0 while nothing is known."""
        return min(1.0, seconds / self.mean_s) if self.mean_s > 0.0 else 0.0

    @property
    def long_s(self) -> float:
        """What nearly all of them take at most."""
        return _LONG_MEANS * self.mean_s
