"""Calls when time alone makes a replica admit requests again, so that nobody who waits for it waits for ever.

Knows breakers and the loop's timers; knows nothing of who waits.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from router.ports import Clock
from router.replicas.member import Member


@dataclass(eq=False, slots=True)
class Alarms:
    """At most one timer a member; `on_ring()` is called when a cooling or an open period of its breaker has ended."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    on_ring: Callable[[], None]
    _timers: dict[Member, asyncio.TimerHandle] = field(default_factory=dict, init=False)

    def set(self, member: Member) -> None:
        """Set, or move, the alarm of a member to when its breaker will admit by itself."""
        self.drop(member)
        now = self.clock()
        at = member.breaker.admits_later_at(now)
        if at < math.inf:
            self._timers[member] = self.loop.call_later(at - now, self._ring, member)

    def drop(self, member: Member) -> None:
        timer = self._timers.pop(member, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ring(self, member: Member) -> None:
        """A loop may call some milliseconds early: then the alarm is set once more."""
        self.set(member)
        if member not in self._timers:
            self.on_ring()
