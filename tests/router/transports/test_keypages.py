"""Keys and tenants over the admin port, and who may see which page."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.admission.bookfile import BookFile
from router.admission.callers import Callers
from router.admission.keyring import Keyring
from router.transports.adapters import PATHS
from router.transports.keypages import add_key_routes, guard
from router.transports.web import admin_routes, data_routes
from tests.router.served import served
from tests.router.transports.test_web import Shown


class Admin:
    """Both ports' pages over one keyring."""

    def __init__(self, path: Path) -> None:
        keyring = Keyring(BookFile(path / "keys.json"), Callers())
        self.app, self.data = admin_routes(Shown().views()), data_routes(Shown().views())
        for app in (self.app, self.data):
            app.middlewares.append(guard(keyring))
        add_key_routes(self.app, keyring)


async def ask(url: str, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, url + path, json=body) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else text


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return Admin(tmp_path)


async def test_keys_are_created_listed_changed_and_revoked(admin: Admin) -> None:
    async with served(admin.app) as url:
        status, made = await ask(url, "POST", "/admin/keys", {"name": "alice", "limits": {"tokens_per_day": 9}})
        assert status == 201
        assert made["token"].startswith("sk-pm-")
        status, listed = await ask(url, "GET", "/admin/keys")
        assert [(key["name"], "token" in key, "digest" in key) for key in listed["keys"]] == [("alice", False, False)]
        status, changed = await ask(url, "PATCH", f"/admin/keys/{made['id']}", {"tenant": "acme"})
        assert (status, changed["tenant"], changed["limits"]) == (200, "acme", {"tokens_per_day": 9})
        status, revoked = await ask(url, "DELETE", f"/admin/keys/{made['id']}")
        assert (status, "revoked_at" in revoked) == (200, True)


async def test_tenants_are_set_listed_and_removed(admin: Admin) -> None:
    async with served(admin.app) as url:
        assert (await ask(url, "PUT", "/admin/tenants/acme", {"weight": 2}))[1] == {"name": "acme", "weight": 2.0}
        assert (await ask(url, "GET", "/admin/tenants"))[1] == {"tenants": [{"name": "acme", "weight": 2.0}]}
        assert (await ask(url, "DELETE", "/admin/tenants/acme"))[0] == 200
        assert (await ask(url, "DELETE", "/admin/tenants/acme"))[0] == 404


async def test_what_is_wrong_is_an_openai_error_that_names_the_field(admin: Admin) -> None:
    async with served(admin.app) as url:
        status, told = await ask(url, "POST", "/admin/keys", {"limits": {"requests_per_minute": 0}})
        assert (status, told["error"]["param"]) == (400, "requests_per_minute")
        assert (await ask(url, "POST", "/admin/keys", [1]))[0] == 400
        assert (await ask(url, "PATCH", "/admin/keys/nobody", {}))[0] == 404


async def test_each_page_takes_its_role_once_a_key_has_it(admin: Admin) -> None:
    async with served(admin.app) as url, served(admin.data) as data_url:
        tokens = {}
        for role in ("use", "metrics", "admin"):
            _, made = await ask(url, "POST", "/admin/keys", {"name": role, "roles": [role]})
            tokens[role] = made["token"]
        found = {
            (path, role): (await ask(data_url if path == "/v1/models" else url, "GET", path, token=token))[0]
            for path in ("/admin/keys", "/metrics", "/v1/models", "/health")
            for role, token in [*tokens.items(), ("nobody", None)]
        }
        assert {where for where, status in found.items() if status == 200} == {
            ("/admin/keys", "admin"),
            ("/metrics", "admin"),
            ("/metrics", "metrics"),
            ("/v1/models", "use"),
            *(("/health", role) for role in ("use", "metrics", "admin", "nobody")),
        }
        assert {found[path, "nobody"] for path in ("/admin/keys", "/metrics", "/v1/models")} == {401}
        assert found["/admin/keys", "use"] == 403


async def test_adapters_are_an_administrators_matter_though_they_stand_on_the_data_port(admin: Admin) -> None:
    async with served(admin.app) as url, served(admin.data) as data_url:
        tokens: dict[str, str] = {}
        for role in ("use", "admin"):
            _, made = await ask(url, "POST", "/admin/keys", {"name": role, "roles": [role]}, tokens.get("admin"))
            tokens[role] = made["token"]
        for path in PATHS:
            assert (await ask(data_url, "POST", path, {}))[0] == 401
            assert (await ask(data_url, "POST", path, {}, tokens["use"]))[0] == 403
            assert (await ask(data_url, "POST", path, {}, tokens["admin"]))[0] == 404  # there is no such page here


async def test_a_key_sees_only_the_models_that_it_may_use(admin: Admin) -> None:
    async with served(admin.app) as url, served(admin.data) as data_url:
        _, made = await ask(url, "POST", "/admin/keys", {"name": "k", "models": ["org/*"]})
        _, listed = await ask(data_url, "GET", "/v1/models", token=made["token"])
        assert [model["id"] for model in listed["data"]] == ["org/m:lora"]
        assert (await ask(data_url, "GET", "/v1/models/m", token=made["token"]))[0] == 404
