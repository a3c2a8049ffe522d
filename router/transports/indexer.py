"""The indexer's routes on the admin port: register, unregister, query by tokens or by hashes. Knows JSON and paths;
what is asked is the indexer's."""

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
from aiohttp import web

from router.errors import InvalidRequest
from router.prefix.indexer import Indexer, Query, Registration, Removal

Asked = TypeVar("Asked")
# As msgspec's errors end: "... - at `$.block_size`".
_FIELD = re.compile(r"\$\.(\w+)")

Answer = Mapping[str, object]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_indexer_routes(
    app: web.Application,
    indexer: Indexer,
    export: Callable[[], Awaitable[bytes]],
    lessons: Callable[[], Awaitable[bytes]],
) -> None:
    """While the application serves, the indexer listens to whom was registered. `export()` is all that is known of
    caches, `lessons()` of speeds, for a router that begins (`workers/warming.py`)."""

    async def everything(_: web.Request) -> web.Response:
        return web.Response(body=await export(), content_type="application/msgpack")

    async def all_lessons(_: web.Request) -> web.Response:
        return web.Response(body=await lessons(), content_type="application/msgpack")

    async def listening(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(indexer.feeds.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    app.cleanup_ctx.append(listening)
    app.router.add_get("/admin/prefix", everything)
    app.router.add_get("/admin/lessons", all_lessons)
    app.router.add_post("/register", _page(Registration, indexer.register))
    app.router.add_post("/unregister", _page(Removal, indexer.unregister))
    app.router.add_post("/query", _page(Query, indexer.query))
    app.router.add_post("/query_by_hash", _page(Query, indexer.query))


def _page(kind: type[Asked], answer: Callable[[Asked], Answer | Awaitable[Answer]]) -> Handler:
    decoder = msgspec.json.Decoder(kind)

    async def page(request: web.Request) -> web.Response:
        try:
            asked = decoder.decode(await request.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            field = _FIELD.search(str(error))
            param = None if field is None else field.group(1)
            raise InvalidRequest(f"The request cannot be understood: {error}.", param=param) from None
        found = answer(asked)
        body = msgspec.json.encode(await found if inspect.isawaitable(found) else found)
        return web.Response(body=body, content_type="application/json")

    return page
