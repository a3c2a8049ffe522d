"""The admin port's pages of keys and tenants, and who may see which page. Knows paths and JSON; what a key is, is the
admission room's.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from router.admission import records
from router.admission.callers import Caller
from router.admission.keyring import Keyring
from router.admission.records import Book
from router.admission.terms import terms
from router.errors import InvalidRequest
from router.transports import adapters

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CALLER = web.RequestKey("caller", Caller)
# Anybody may ask whether the router lives; all else under a prefix takes its role.
ROLES = (*((path, "admin") for path in adapters.PATHS), ("/v1/", "use"), ("/metrics", "metrics"), ("/admin/", "admin"))


def guard(keyring: Keyring) -> Any:
    """Middleware: who asks, by key. Raises Unauthorized or Forbidden."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        role = next((role for prefix, role in ROLES if request.path.startswith(prefix)), None)
        if role is not None:
            headers = tuple((name.lower(), value) for name, value in request.headers.items())
            credential = terms(headers).credential
            request[CALLER] = keyring.callers.identify(credential, time.time(), role)
        return await handler(request)

    return check


def add_key_routes(app: web.Application, keyring: Keyring) -> None:
    pages = _KeyPages(keyring)
    app.router.add_get("/admin/keys", pages.keys)
    app.router.add_post("/admin/keys", pages.create)
    app.router.add_patch("/admin/keys/{id}", pages.change)
    app.router.add_delete("/admin/keys/{id}", pages.revoke)
    app.router.add_get("/admin/tenants", pages.tenants)
    app.router.add_put("/admin/tenants/{name}", pages.set_tenant)
    app.router.add_delete("/admin/tenants/{name}", pages.remove_tenant)


class _KeyPages:
    """A method for each page."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def keys(self, _: web.Request) -> web.Response:
        await self._keyring.refresh()
        return web.json_response({"keys": [key.shown() for key in self._book.keys.values()]})

    async def create(self, request: web.Request) -> web.Response:
        """The only answer that ever holds the token."""
        fields = await _fields(request)
        key, token = await self._keyring.edit(lambda book: records.create_key(book, fields, time.time()))
        return web.json_response(key.shown() | {"token": token}, status=201)

    async def change(self, request: web.Request) -> web.Response:
        id, fields = request.match_info["id"], await _fields(request)
        (key,) = await self._keyring.edit(lambda book: records.change_key(book, id, fields))
        return web.json_response(key.shown())

    async def revoke(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        (key,) = await self._keyring.edit(lambda book: records.revoke_key(book, id, time.time()))
        return web.json_response(key.shown())

    async def tenants(self, _: web.Request) -> web.Response:
        await self._keyring.refresh()
        return web.json_response({"tenants": [records.plain(tenant) for tenant in self._book.tenants.values()]})

    async def set_tenant(self, request: web.Request) -> web.Response:
        name, fields = request.match_info["name"], await _fields(request)
        (tenant,) = await self._keyring.edit(lambda book: records.set_tenant(book, name, fields))
        return web.json_response(records.plain(tenant))

    async def remove_tenant(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        await self._keyring.edit(lambda book: (records.remove_tenant(book, name),))
        return web.json_response({"name": name})

    @property
    def _book(self) -> Book:
        return self._keyring.callers.book


async def _fields(request: web.Request) -> dict[str, Any]:
    """Raises InvalidRequest."""
    try:
        fields = await request.json() if request.can_read_body else {}
    except ValueError:
        raise InvalidRequest("The body is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return fields
