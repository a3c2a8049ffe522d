"""Several computations of one request at once. Knows asyncio only."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def side_by_side(computations: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """What each gives, in order. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(computation) for computation in computations]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
