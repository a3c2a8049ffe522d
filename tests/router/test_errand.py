"""An errand alone: when it has a task, when it goes on, and how it is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from router.errand import Ending, Errand, State, own_task
from tests.fakes import turns, until


@dataclass(eq=False)
class Log:
    """What a coroutine saw, word by word."""

    words: list[str] = field(default_factory=list)

    async def follow(self, *steps: Callable[[], Awaitable[object]]) -> None:
        """Await one after the other; an error is noted and left behind, a cancel is noted and goes on."""
        for number, step in enumerate(steps):
            try:
                await step()
                self.words.append(f"{number} done")
            except ValueError as error:
                self.words.append(f"{number} {error}")
            except asyncio.CancelledError:
                self.words.append(f"{number} cancelled")
                raise


def new_ending() -> Ending:
    return Ending(asyncio.get_running_loop())


async def test_what_waits_for_its_ending_only_has_no_task_and_goes_on_in_the_call_that_settles_it() -> None:
    log, ending = Log(), new_ending()
    errand = Errand(log.follow(lambda: ending)).step()
    assert (errand.state, asyncio.all_tasks()) == (State.WAITING, {asyncio.current_task()})
    ending.settle()
    assert (errand.state, log.words) == (State.ENDED, ["0 done"])


async def test_an_ending_settled_with_an_error_raises_it() -> None:
    log, first, second = Log(), new_ending(), new_ending()
    errand = Errand(log.follow(lambda: first, lambda: second)).step()
    first.settle(ValueError("was cut"))
    assert (errand.state, log.words) == (State.WAITING, ["0 was cut"])
    second.settle()
    assert log.words == ["0 was cut", "1 done"]


async def test_only_the_first_settling_counts() -> None:
    log, ending = Log(), new_ending()
    Errand(log.follow(lambda: ending)).step()
    ending.settle()
    ending.settle(ValueError("too late"))
    assert log.words == ["0 done"]


async def test_an_ending_settled_before_it_is_awaited_is_not_waited_for() -> None:
    log, ending = Log(), new_ending()
    ending.settle()
    assert Errand(log.follow(lambda: ending)).step().state is State.ENDED


async def test_what_waits_for_anything_else_gets_a_task_and_keeps_it() -> None:
    log, ending, event = Log(), new_ending(), asyncio.Event()
    errand = Errand(log.follow(event.wait, lambda: ending)).step()
    assert repr(errand) == "<Errand GETTING_TASK>"
    event.set()
    await until(lambda: log.words)
    assert errand.state is State.IN_TASK
    ending.settle()
    assert log.words == ["0 done"], "a task goes on in a turn of its own"
    await errand.wait()
    assert (errand.state, log.words) == (State.ENDED, ["0 done", "1 done"])


async def test_with_a_task_of_its_own_it_can_have_a_timeout() -> None:
    async def hurry() -> None:
        await own_task()
        await own_task()  # it has one: nothing happens
        async with asyncio.timeout(0.0):
            await asyncio.Event().wait()

    async def serve() -> None:
        try:
            await hurry()
        except TimeoutError:
            log.words.append("too late")

    log = Log()
    await Errand(serve()).step().wait()
    assert log.words == ["too late"]


async def test_a_cancel_is_heard_in_the_call_where_there_is_no_task() -> None:
    log, ending = Log(), new_ending()
    errand = Errand(log.follow(lambda: ending)).step()
    errand.cancel()
    assert (errand.state, log.words) == (State.ENDED, ["0 cancelled"])
    ending.settle()
    errand.cancel()
    assert log.words == ["0 cancelled"]


@pytest.mark.parametrize("num_turns", [0, 1, 5])
async def test_a_cancel_reaches_a_task_that_has_begun_and_one_that_has_not(num_turns: int) -> None:
    log = Log()
    errand = Errand(log.follow(asyncio.Event().wait)).step()
    await turns(num_turns)
    errand.cancel()
    await errand.wait()
    assert log.words == ["0 cancelled"]


async def test_a_cancel_from_within_is_heard_at_the_next_wait() -> None:
    log, ending = Log(), new_ending()

    async def cancel_itself() -> None:
        errand.cancel()

    errand = Errand(log.follow(cancel_itself, lambda: ending))
    errand.step()
    assert (errand.state, log.words) == (State.ENDED, ["0 done", "1 cancelled"])


async def test_an_errand_may_refuse_a_cancel_and_go_on() -> None:
    async def stubborn() -> None:
        try:
            await first
        except asyncio.CancelledError:
            await second

    first, second = new_ending(), new_ending()
    errand = Errand(stubborn()).step()
    errand.cancel()
    assert repr(errand) == "<Errand WAITING>"
    second.settle()
    assert errand.state is State.ENDED


async def test_who_waits_for_it_and_is_cancelled_takes_it_along_and_sees_its_end() -> None:
    log, ending = Log(), new_ending()
    errand = Errand(log.follow(lambda: ending)).step()
    waiting = asyncio.ensure_future(errand.wait())
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (errand.state, log.words) == (State.ENDED, ["0 cancelled"])


async def test_its_state_can_be_read() -> None:
    errand = Errand(Log().follow(new_ending)).step()
    assert repr(errand) == "<Errand WAITING>"
    errand.cancel()
    assert repr(errand) == "<Errand ENDED>"


async def test_a_fault_reaches_who_took_the_step_and_ends_the_errand() -> None:
    async def break_down() -> None:
        await ending
        raise RuntimeError("broken")

    ending = new_ending()
    errand = Errand(break_down()).step()
    with pytest.raises(RuntimeError, match="broken"):
        ending.settle()
    assert errand.state is State.ENDED
    await errand.wait()
