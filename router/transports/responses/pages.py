"""Stored responses on aiohttp: read, followed, cancelled, deleted, their input listed. Knows OpenAI's shapes and paths;
what is stored is the desk's matter."""

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from router.core import Headers
from router.errors import InvalidRequest, PointsmanError
from router.headers import EARLY_STREAM
from router.transports.responses.desk import ResponseDesk
from router.transports.responses.following import sse, sse_failure

MAX_LISTED = 100
_TRUE, _FALSE = ("true", "1"), ("false", "0", "")


def add_response_routes(app: web.Application, desk: ResponseDesk) -> None:
    pages = _Pages(desk)
    app.router.add_get("/v1/responses/{id}", pages.read)
    app.router.add_delete("/v1/responses/{id}", pages.delete)
    app.router.add_post("/v1/responses/{id}/cancel", pages.cancel)
    app.router.add_get("/v1/responses/{id}/input_items", pages.input_items)


class _Pages:
    def __init__(self, desk: ResponseDesk) -> None:
        self._desk = desk

    async def read(self, request: web.Request) -> web.StreamResponse:
        if _truth(request, "stream"):
            return await self._follow(request)
        if "starting_after" in request.query:
            raise InvalidRequest("`starting_after` needs `stream=true`.", param="starting_after")
        return _json((await self._desk.kept(self._owner(request), request.match_info["id"])).response)

    async def cancel(self, request: web.Request) -> web.Response:
        return _json((await self._desk.cancel(self._owner(request), request.match_info["id"])).response)

    async def delete(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        await self._desk.delete(self._owner(request), id)
        return _json({"id": id, "object": "response", "deleted": True})

    async def input_items(self, request: web.Request) -> web.Response:
        """The latest first, unless it is asked otherwise."""
        kept = await self._desk.kept(self._owner(request), request.match_info["id"])
        items = [{"id": f"msg_{i}", **item} for i, item in enumerate(kept.input)]
        return _json(_listed(items, request))

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        after = _number(request, "starting_after", -1, 2**53)
        opened = await self._desk.following.open(self._owner(request), request.match_info["id"], after)
        response = web.StreamResponse(headers=dict(EARLY_STREAM))
        await response.prepare(request)
        try:
            async with opened as found:
                async for events in found:
                    await response.write(b"".join(map(sse, events)) or b": following\n\n")
                    after += len(events)
        except PointsmanError as error:
            await response.write(sse_failure(error, after + 1))
        await response.write_eof()
        return response

    def _owner(self, request: web.Request) -> str:
        return self._desk.owner_of(_headers(request))


def _headers(request: web.Request) -> Headers:
    return tuple((name.lower(), value) for name, value in request.headers.items())


def _listed(items: Sequence[dict[str, Any]], request: web.Request) -> dict[str, Any]:
    order, after = request.query.get("order", "desc"), request.query.get("after")
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` must be asc or desc.", param="order")
    found = list(items if order == "asc" else reversed(items))
    if after is not None:
        ids = [item["id"] for item in found]
        if after not in ids:
            raise InvalidRequest(f"There is no item `{after}`.", param="after")
        found = found[ids.index(after) + 1 :]
    page = found[: _number(request, "limit", 20, MAX_LISTED, least=1)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(page) < len(found)}


def _number(request: web.Request, name: str, default: int, most: int, least: int = 0) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not text.isascii() or not least <= int(text[:20]) <= most:
        raise InvalidRequest(f"`{name}` must be a whole number from {least} to {most}.", param=name)
    return int(text)


def _truth(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "").lower()
    if text not in (*_TRUE, *_FALSE):
        raise InvalidRequest(f"`{name}` must be true or false.", param=name)
    return text in _TRUE


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
