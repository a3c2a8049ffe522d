import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router runs on uvloop, whose transports differ from asyncio's in detail."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
