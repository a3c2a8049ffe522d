"""Stored responses on aiohttp: read, cancelled, deleted, their input listed. Knows OpenAI's shapes; what is stored is
the desk's matter."""

import msgspec
from aiohttp import web

from router.transports.dialects.desk import Dialects, UnknownResponse, owner_of


def add_response_routes(app: web.Application, dialects: Dialects) -> None:
    pages = _Pages(dialects)
    app.router.add_get("/v1/responses/{id}", pages.read)
    app.router.add_delete("/v1/responses/{id}", pages.delete)
    app.router.add_post("/v1/responses/{id}/cancel", pages.cancel)
    app.router.add_get("/v1/responses/{id}/input_items", pages.input_items)


class _Pages:
    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects

    async def read(self, request: web.Request) -> web.Response:
        kept = await self._dialects.kept(_owner(request), request.match_info["id"])
        return _json(kept.response)

    async def cancel(self, request: web.Request) -> web.Response:
        kept = await self._dialects.cancel(_owner(request), request.match_info["id"])
        return _json(kept.response)

    async def delete(self, request: web.Request) -> web.Response:
        owner, id = _owner(request), request.match_info["id"]
        if (errand := self._dialects.running.pop((owner, id), None)) is not None:
            errand.cancel()
        if not await self._dialects.store.delete(owner, id):
            raise UnknownResponse(f"There is no response `{id}`.", param="response_id")
        return _json({"id": id, "object": "response", "deleted": True})

    async def input_items(self, request: web.Request) -> web.Response:
        kept = await self._dialects.kept(_owner(request), request.match_info["id"])
        items = [{"id": f"msg_{i}", **item} for i, item in enumerate(kept.input)]
        ids = [item["id"] for item in items]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return _json({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False})


def _owner(request: web.Request) -> str:
    return owner_of(tuple((name.lower(), value) for name, value in request.headers.items()))


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
