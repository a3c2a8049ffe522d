"""Trying again what Redis was away for."""

import asyncio

import pytest

from router.transports.responses.patience import patiently
from router.transports.responses.states import ResponsesAway


class Step:
    """Away for so many tries."""

    def __init__(self, num_away: int) -> None:
        self.num_away = num_away
        self.num_tries = 0

    async def __call__(self) -> str:
        self.num_tries += 1
        if self.num_tries <= self.num_away:
            raise ResponsesAway("away")
        return "done"


async def test_it_is_tried_again_until_it_is_done() -> None:
    step = Step(2)
    async with asyncio.timeout(30):
        assert await patiently(step, 600.0) == "done"
    assert step.num_tries == 3


async def test_without_patience_there_is_one_try() -> None:
    step = Step(1)
    with pytest.raises(ResponsesAway):
        await patiently(step, 0.0)
    assert step.num_tries == 1
