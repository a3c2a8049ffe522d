import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from router.replicas.alarms import Alarms
from tests.router.nouns import FakeClock
from tests.router.replicas.fakes import make_member


@dataclass(eq=False)
class FakeTimer:
    delay_s: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop(asyncio.AbstractEventLoop):
    """Keeps what should be called later; a test calls it."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []

    def call_later(self, delay, callback, *args, context=None):  # type: ignore[no-untyped-def, override]
        timer = FakeTimer(delay, lambda: callback(*args))
        self.timers.append(timer)
        return timer


@dataclass(eq=False)
class Setting:
    clock: FakeClock = field(default_factory=lambda: FakeClock(10.0))
    loop: FakeLoop = field(default_factory=FakeLoop)
    num_rings: int = 0

    def __post_init__(self) -> None:
        self.alarms = Alarms(self.loop, self.clock, self.ring)

    def ring(self) -> None:
        self.num_rings += 1

    def pass_time(self, until: float) -> None:
        self.clock.now = until
        self.loop.timers[-1].callback()


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_it_rings_when_a_replica_has_cooled(setting: Setting) -> None:
    member = make_member()
    member.breaker.push_back(10.0, is_trial=False, retry_after_s=3.0)
    setting.alarms.set(member)
    assert setting.loop.timers[0].delay_s == 3.0
    setting.pass_time(13.0)
    assert setting.num_rings == 1


def test_it_rings_when_an_open_period_ends(setting: Setting) -> None:
    member = make_member(max_faults=1, open_s=2.0)
    member.breaker.fail(10.0, is_trial=False)
    setting.alarms.set(member)
    setting.pass_time(12.0)
    assert setting.num_rings == 1


def test_a_timer_that_comes_early_is_set_once_more(setting: Setting) -> None:
    member = make_member()
    member.breaker.push_back(10.0, is_trial=False, retry_after_s=3.0)
    setting.alarms.set(member)
    setting.pass_time(12.5)
    assert setting.num_rings == 0
    assert setting.loop.timers[1].delay_s == 0.5
    setting.pass_time(13.0)
    assert setting.num_rings == 1


def test_a_replica_that_admits_needs_no_alarm(setting: Setting) -> None:
    setting.alarms.set(make_member())
    assert setting.loop.timers == []


def test_each_replica_has_one_timer_at_most_and_none_is_left_at_the_end(setting: Setting) -> None:
    members = [make_member("a"), make_member("b"), make_member("c")]
    for member in members * 3:
        member.breaker.push_back(10.0, is_trial=False, retry_after_s=3.0)
        setting.alarms.set(member)
    setting.alarms.drop(members[0])
    assert sum(not timer.is_cancelled for timer in setting.loop.timers) == 2
    setting.alarms.close()
    assert all(timer.is_cancelled for timer in setting.loop.timers)
