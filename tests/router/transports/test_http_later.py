"""Requests whose client would rather come back for the answer: the data port leaves them to the room of jobs."""

import json

import pytest
from aiohttp import web

from tests.router.transports.conftest import OpenPorts
from tests.router.transports.port import CHAT, get, post


@pytest.mark.parametrize(
    "head", ["prefer: respond-async", "prefer: wait=5, Respond-Async;x=1", "Prefer: handling=strict"]
)
@pytest.mark.parametrize("more", ["x-odd: 1", "connection: close"])
async def test_where_there_are_no_jobs_an_answer_that_may_come_later_comes_at_once(
    open_port: OpenPorts, head: str, more: str
) -> None:
    port = await open_port()
    client = await port.connect()
    client.send(post("/v1/chat/completions", CHAT, head, more))
    (await port.call()).answer(b"now")
    assert (await client.answer()).payload == b"now"


@pytest.mark.parametrize("more", ["x-odd: 1", "connection: close"])
async def test_where_there_are_jobs_a_request_that_may_be_answered_later_is_not_served_here(
    open_port: OpenPorts, more: str
) -> None:
    app = web.Application()

    async def submitted(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), status=202)

    app.router.add_post("/v1/chat/completions", submitted)
    port = await open_port(app)
    port.port.has_jobs = True
    client = await port.connect()
    client.send(post("/v1/chat/completions?x=1", CHAT, "prefer: wait=5, Respond-Async;x=1", more))
    answer = await client.answer()
    assert (answer.status, json.loads(answer.payload)) == (202, CHAT)
    assert not port.calls
    other = await port.connect()
    other.send(post("/v1/chat/completions", CHAT, "prefer: handling=strict"))
    (await port.call()).answer(b"now")
    assert (await other.answer()).payload == b"now"
    other.send(get("//?/v1/chat/completions"))
    assert (await other.answer(1)).status == 404
