"""Processes that share a Redis, and a client that reads their streams event by event."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from router.transports.responses.archive import Archive
from tests.fakes import FakeExchange
from tests.router.transports.dialects.rig import Rig, open_rig, stream

PATH = "/v1/responses"
ASK = {"model": "m", "input": "hi"}
RESUMABLE = ASK | {"stream": True, "store": True}
BACKGROUND = ASK | {"stream": True, "background": True}


@asynccontextmanager
async def open_rigs(archive: Archive, number: int = 2) -> AsyncIterator[list[Rig]]:
    """Processes that share Redis. Each looks after what runs, as the composition root has it do."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_rig(archive)) for _ in range(number)]


class Reader:
    """Reads a stream event by event, as far as it is asked to."""

    def __init__(self, rig: Rig, method: str, path: str, body: object = None) -> None:
        self._context = rig.session.request(method, path, json=body)

    async def __aenter__(self) -> "Reader":
        """It is asked; its head may come later."""
        self._asking = asyncio.ensure_future(self._context.__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        (await self._asking).close()

    async def event(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            response = await self._asking
            assert response.status == 200, await response.read()
            while True:
                line = await response.content.readline()
                assert line, "the stream has ended"
                if line.startswith(b"data: "):
                    found: dict[str, Any] = json.loads(line[6:])
                    return found

    async def until_type(self, type: str) -> list[dict[str, Any]]:
        found = [await self.event()]
        while found[-1]["type"] != type:
            found.append(await self.event())
        return found


def delta(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()


async def answered(exchange: FakeExchange, *texts: str) -> None:
    exchange.head()
    exchange.send(stream(*({"content": text} for text in texts)))
    exchange.end()


async def polled(rig: Rig, id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (found := (await rig.fetch("GET", f"{PATH}/{id}")).json)["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found
