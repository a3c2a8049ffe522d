"""Circuit breaker of one replica. Knows faults, back-pressure and the time it is given; knows no sockets, no statuses.

Only faults open it. Back-pressure (429, 503) lets the replica cool down and neither opens nor closes anything. After an
open period one trial at a time is admitted; only the trial's own end moves a half-open breaker, as requests sent
before the break end late and say nothing new.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Event(Enum):
    TRIPPED = "too many faults in a row"
    WAITED = "the open period ended and a trial left"
    RECOVERED = "a lost replica answered its probe again"
    TRIAL_PASSED = "a trial succeeded"
    TRIAL_FAILED = "a trial was a fault"


# What is absent changes nothing.
TRANSITIONS: Mapping[tuple[BreakerState, Event], BreakerState] = {
    (BreakerState.CLOSED, Event.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, Event.WAITED): BreakerState.HALF_OPEN,
    (BreakerState.OPEN, Event.RECOVERED): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, Event.TRIAL_PASSED): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, Event.TRIAL_FAILED): BreakerState.OPEN,
}

JITTER = 0.25


@dataclass(eq=False, slots=True)
class Breaker:
    """Times are seconds of the caller's clock. `random` gives 0..1 and spreads the ends of open periods."""

    max_faults: int = 3
    open_s: float = 2.0
    cooldown_s: float = 1.0
    max_cooldown_s: float = 30.0
    random: Callable[[], float] = random.random
    state: BreakerState = BreakerState.CLOSED
    num_faults: int = 0
    open_until: float = -math.inf
    cooling_until: float = -math.inf
    has_trial: bool = False

    def admits(self, now: float) -> bool:
        """May a request be sent now?"""
        if now < self.cooling_until:
            return False
        if self.state is BreakerState.OPEN:
            return now >= self.open_until
        return self.state is BreakerState.CLOSED or not self.has_trial

    def admits_later_at(self, now: float) -> float:
        """When time alone will change `admits` to True: `inf` when it already does, or when a trial must end first."""
        opens_at = self.open_until if self.state is BreakerState.OPEN else -math.inf
        at = max(self.cooling_until, opens_at)
        return at if at > now else math.inf

    def send(self, now: float) -> bool:
        """A request leaves. True when it is a trial: say so to `succeed`, `fail`, `push_back` or `abandon`."""
        if self.state is BreakerState.OPEN and now >= self.open_until:
            self._follow(Event.WAITED)
        if self.state is not BreakerState.HALF_OPEN or self.has_trial:
            return False
        self.has_trial = True
        return True

    def succeed(self, is_trial: bool) -> None:
        """The replica did what it was asked, or refused a wrong request (4xx)."""
        self.num_faults = 0
        if is_trial:
            self._end_trial(Event.TRIAL_PASSED)

    def fail(self, now: float, is_trial: bool) -> None:
        """The replica is to blame."""
        if self.state is BreakerState.CLOSED:
            self.num_faults += 1
            if self.num_faults >= self.max_faults:
                self._open(now, Event.TRIPPED)
        elif is_trial:
            self._open(now, Event.TRIAL_FAILED)

    def push_back(self, now: float, is_trial: bool, retry_after_s: float | None = None) -> None:
        """The replica has too much to do: nothing new for as long as it says (within our cap), else for a moment."""
        wait_s = self.cooldown_s if retry_after_s is None else retry_after_s
        self.cooling_until = max(self.cooling_until, now + min(max(wait_s, 0.0), self.max_cooldown_s))
        self.abandon(is_trial)

    def cool(self, until: float) -> None:
        """Another worker was pushed back."""
        self.cooling_until = max(self.cooling_until, until)

    def abandon(self, is_trial: bool) -> None:
        """The request ended without a word about the replica: another trial may follow."""
        if is_trial:
            self.has_trial = False

    def recover(self) -> None:
        """The replica came back from the dead: a trial may leave at once, and what it asked of us before is void."""
        self.num_faults = 0
        self.cooling_until = -math.inf
        self._follow(Event.RECOVERED)

    def _open(self, now: float, event: Event) -> None:
        self._end_trial(event)
        self.num_faults = 0
        self.open_until = now + self.open_s * (1 + JITTER * self.random())

    def _end_trial(self, event: Event) -> None:
        self.has_trial = False
        self._follow(event)

    def _follow(self, event: Event) -> None:
        self.state = TRANSITIONS.get((self.state, event), self.state)

    def __repr__(self) -> str:
        trial = " with a trial out" if self.has_trial else ""
        return f"<Breaker {self.state.name} {self.num_faults} faults{trial}>"
