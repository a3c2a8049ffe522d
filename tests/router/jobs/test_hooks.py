"""Webhooks over real connections: signatures that others' libraries verify, retries, refused addresses."""

import asyncio
import base64
import ipaddress
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from standardwebhooks import Webhook, WebhookVerificationError

from router.errors import InvalidRequest
from router.jobs import hooks
from router.jobs.addresses import AddressRefused, CheckedResolver, Reach, parse_networks
from router.jobs.signing import Signer, parse_secret
from router.store import names
from router.store.connection import Store
from tests.router.jobs.rig import SECRET, Rig, open_rig, patiently
from tests.router.store.servers import Server

SHOWN_SECRET = "whsec_" + base64.b64encode(SECRET).decode()


@dataclass(eq=False)
class Receiver:
    """A client's server. `answers` are given in turn, then 200."""

    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Receiver"]:
        app = web.Application()
        app.router.add_post("/hook", self._take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        yield self
        await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append((headers, await request.read()))
        status, more = self.answers.pop(0) if self.answers else (200, {})
        return web.Response(status=status, headers=more)


async def test_the_end_of_a_job_is_told_signed_as_the_libraries_verify(store: Store, tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, open_rig(store, tmp_path, hooks=True, answers=True) as rig:
        job = await rig.submit(webhook_endpoint=receiver.url)
        await patiently(lambda: receiver.received)
        headers, body = receiver.received[0]
        event = Webhook(SHOWN_SECRET).verify(body, headers)
        assert (event["type"], event["data"]["id"]) == ("response.completed", job["id"])
        assert event["data"]["response"]["body"] == {"said": "hi"}
        unwrapped = openai.OpenAI(api_key="-").webhooks.unwrap(body, headers, secret=SHOWN_SECRET)
        assert unwrapped.type == "response.completed"
        with pytest.raises(WebhookVerificationError):
            Webhook(SHOWN_SECRET).verify(body + b" ", headers)
        await patiently_delivered(rig, job["id"])


async def patiently_delivered(rig: Any, id: str, state: str = "delivered") -> None:
    async with asyncio.timeout(20):
        while (await rig.pages.book.find(id)).hook_state != state:  # noqa: ASYNC110  (Redis does not tell us)
            await asyncio.sleep(0.02)


async def test_an_attempt_that_fails_is_made_again_under_the_same_id(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "SCHEDULE_S", (0.05, 0.05, 0.05))
    answers: list[tuple[int, dict[str, str]]] = [
        (500, {}),
        (302, {"location": "/elsewhere"}),
        (429, {"retry-after": "0"}),
    ]
    async with Receiver(answers).serving() as receiver, open_rig(store, tmp_path, hooks=True, answers=True) as rig:
        job = await rig.submit(webhook_endpoint=receiver.url)
        await patiently_delivered(rig, job["id"])
        assert len(receiver.received) == 4
        assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1
        assert len({body for _, body in receiver.received}) == 1


async def test_410_and_the_end_of_the_schedule_give_it_up_and_it_is_sent_anew_on_demand(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "SCHEDULE_S", (0.05,))
    answers: list[tuple[int, dict[str, str]]] = [(410, {})]
    async with Receiver(answers).serving() as receiver, open_rig(store, tmp_path, hooks=True, answers=True) as rig:
        gone = await rig.submit(webhook_endpoint=receiver.url)
        await patiently_delivered(rig, gone["id"], "failed")
        assert len(receiver.received) == 1
        receiver.answers = [(500, {}), (500, {})]
        failing = await rig.submit(webhook_endpoint=receiver.url)
        await patiently_delivered(rig, failing["id"], "failed")
        assert len(receiver.received) == 3
        _, dead = await rig.fetch("GET", "/admin/webhooks")
        assert {each["id"] for each in dead["webhooks"]} == {gone["id"], failing["id"]}
        assert "410" in next(each["fault"] for each in dead["webhooks"] if each["id"] == gone["id"])
        await rig.fetch("POST", f"/v1/async/{gone['id']}/webhook")
        await patiently_delivered(rig, gone["id"])
        await rig.fetch("POST", f"/admin/webhooks/{failing['id']}/replay")
        await patiently_delivered(rig, failing["id"])


async def test_thin_and_cloud_events_are_as_asked_for(store: Store, tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, open_rig(store, tmp_path, hooks=True, answers=True) as rig:
        options = {"webhook_endpoint": receiver.url, "webhook_payload": "thin", "webhook_format": "cloudevents"}
        job = await rig.submit(**options)
        await patiently(lambda: receiver.received)
        headers, body = receiver.received[0]
        assert json.loads(body) == {"id": job["id"]}
        assert (headers["ce-specversion"], headers["ce-type"]) == ("1.0", "response.completed")


async def test_no_answer_at_all_is_tried_again_later(store: Store, tmp_path: Path, redis_server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/hook"
    async with open_rig(store, tmp_path, hooks=True, answers=True) as rig:
        job = await rig.submit(webhook_endpoint=url)
        async with asyncio.timeout(20):
            while not await hook_fault(rig, job["id"]):  # noqa: ASYNC110  (Redis does not tell us)
                await asyncio.sleep(0.02)
        assert redis_server.command("ZSCORE", names.JOBS + "hooks", job["id"]) is not None


async def hook_fault(rig: Rig, id: str) -> str:
    job = await rig.pages.book.find(id)
    return "" if job is None else job.hook_fault


class Lying(AbstractResolver):
    """A name server of a client's."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in self.hosts
        ]

    async def close(self) -> None: ...


async def test_a_name_that_leads_inside_is_refused_when_it_is_connected_to(store: Store, tmp_path: Path) -> None:
    """The check is the resolver: there is no time between check and connect in which the name could change."""
    async with open_rig(store, tmp_path, answers=True) as rig:
        rig.pages.sender.resolver = CheckedResolver(Reach(allows_http=True), Lying("127.0.0.1", "169.254.169.254"))
        sending = asyncio.ensure_future(rig.pages.sender.run())
        job = await rig.submit(webhook_endpoint="http://inside.example/")
        await patiently_delivered(rig, job["id"], "failed")
        found = await rig.pages.book.find(job["id"])
        assert found is not None
        assert "no public address" in found.hook_fault
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_only_addresses_that_may_be_reached_are_given() -> None:
    resolver = CheckedResolver(Reach(), Lying("10.1.2.3", "93.184.216.34"))
    assert [each["host"] for each in await resolver.resolve("x", 1)] == ["93.184.216.34"]
    with pytest.raises(AddressRefused):
        await CheckedResolver(Reach(), Lying("::1")).resolve("x", 1)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "[::1]",
        "[fe80::1]",
        "[fd00::1]",
        "[::ffff:10.0.0.1]",
        "[2002:0a00:0001::]",
    ],
)
def test_addresses_that_are_not_public_are_refused_in_every_spelling(host: str) -> None:
    with pytest.raises(InvalidRequest, match="not a public address"):
        Reach().check_url(f"https://{host}/hook")


def test_public_ones_and_those_allowed_are_not() -> None:
    Reach().check_url("https://93.184.216.34/hook")
    Reach().check_url("https://hooks.example.com:8443/hook")
    Reach(parse_networks(["10.0.0.0/8"])).check_url("https://10.0.0.1/")
    with pytest.raises(InvalidRequest, match="https://"):
        Reach().check_url("http://hooks.example.com/")
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8"):
        parse_networks(["10.0.0.1/8"])


def test_two_secrets_sign_so_that_either_verifies() -> None:
    old, new = b"o" * 24, b"n" * 24
    headers = Signer([new, old]).headers("evt_1", 1_700_000_000, b"{}")
    assert len(headers["webhook-signature"].split()) == 2
    assert Signer([]).headers("evt_1", 1, b"{}").keys() == {"webhook-id", "webhook-timestamp"}


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_!!!!", "c" * 40, "whsec_" + "YQ==" * 40])
def test_a_short_or_broken_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="24 to 64") as caught:
        parse_secret(secret)
    assert secret == "" or secret.removeprefix("whsec_") == "" or secret not in str(caught.value)


def test_reach_knows_networks() -> None:
    assert Reach([ipaddress.ip_network("::1/128")]).may_reach(ipaddress.ip_address("::1"))
