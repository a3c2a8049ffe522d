"""Asynchronous requests from their submission to their end, with replicas in memory."""

import asyncio
import json
from pathlib import Path

import pytest

from router.errors import ConnectionCut
from router.jobs import runner as running
from router.store import names
from router.store.connection import Store
from tests.fakes import until
from tests.router.jobs.rig import CHAT, open_rig, patiently
from tests.router.store.servers import Server


async def test_a_request_gets_an_id_at_once_and_its_answer_later(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 0
        job = await rig.submit(temperature=0.5)
        assert (job["status"], job["endpoint"], job["webhook_status"]) == ("queued", "/v1/chat/completions", "none")
        rig.room[0] = 8
        exchange = await rig.exchange()
        assert json.loads(exchange.attempt.body) == CHAT | {"temperature": 0.5}
        _, running_job = await rig.fetch("GET", f"/v1/async/{job['id']}")
        assert (running_job["status"], running_job["response"]) == ("running", None)
        exchange.answer(200, b'{"choices":[]}')
        await rig.ended(job["id"])
        _, ended = await rig.fetch("GET", f"/v1/async/{job['id']}")
        assert (ended["status"], ended["response"]) == ("succeeded", {"status_code": 200, "body": {"choices": []}})
        status, _ = await rig.fetch("GET", f"/v1/async/{job['id']}", headers={"x-tenant": "other"})
        assert status == 404


async def test_who_prefers_to_come_back_gets_an_id_on_the_usual_route(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        headers = {"prefer": "respond-async", "idempotency-key": "k"}
        body = CHAT | {"max_time_in_queue_seconds": 60}
        async with rig.session.post("/v1/chat/completions", json=body, headers=headers) as response:
            job = await response.json()
            assert (response.status, response.headers["location"]) == (202, f"/v1/async/{job['id']}")
            assert response.headers["preference-applied"] == "respond-async"
        _, same = await rig.fetch("POST", "/v1/chat/completions", body, headers=headers)
        assert same["id"] == job["id"]
        status, told = await rig.fetch("POST", "/v1/chat/completions", CHAT | {"stream": True}, headers=headers)
        assert (status, told["error"]["param"]) == (400, "stream")
        exchange = await rig.exchange()
        assert json.loads(exchange.attempt.body) == CHAT
        exchange.answer(200, b"{}")
        assert (await rig.ended(job["id"])).state == "succeeded"


async def test_fields_of_ours_reach_no_engine(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        retries = {"max_attempts": 2, "initial_delay_ms": 1, "max_delay_ms": 1}
        await rig.submit(priority=0, max_time_in_queue_seconds=60, inference_retry_config=retries)
        exchange = await rig.exchange()
        assert json.loads(exchange.attempt.body) == CHAT
        exchange.answer(200, b"{}")


async def test_a_cut_answer_is_tried_again_and_a_wrong_request_is_not(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        retries = {"max_attempts": 3, "initial_delay_ms": 0, "max_delay_ms": 0}
        job = await rig.submit(inference_retry_config=retries)
        first = await rig.exchange()
        first.head(200, (("content-type", "application/json"),))
        first.send(b'{"cho')
        first.fail(ConnectionCut("cut"))
        second = await rig.exchange(1)
        second.answer(200, b"{}")
        ended = await rig.ended(job["id"])
        assert (ended.state, ended.tries) == ("succeeded", 1)
        wrong = await rig.submit()
        (await rig.exchange(2)).answer(400, b'{"error":{"message":"no"}}')
        ended = await rig.ended(wrong["id"])
        assert (ended.state, ended.status, b"no" in ended.result) == ("failed", 400, True)
        assert len(rig.upstream.exchanges) == 3


async def test_an_unknown_model_fails_with_its_error(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        job = await rig.submit(model="other")
        ended = await rig.ended(job["id"])
        assert (ended.state, ended.status) == ("failed", 404)
        assert json.loads(ended.result)["error"]["code"] == "model_not_found"


async def test_jobs_run_only_while_there_is_room(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 0
        jobs = [await rig.submit() for _ in range(3)]
        await asyncio.sleep(2 * running.IDLE_S)
        assert rig.upstream.exchanges == []
        rig.room[0] = 1
        for number in range(3):
            exchange = await rig.exchange(number)
            assert len(rig.upstream.exchanges) == number + 1
            exchange.answer(200, b"{}")
        assert {(await rig.ended(job["id"])).state for job in jobs} == {"succeeded"}


async def test_a_job_is_cancelled_where_it_waits_and_where_it_runs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "RENEW_S", 0.05)
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 1
        first, second = await rig.submit(), await rig.submit()
        exchange = await rig.exchange()
        _, cancelled = await rig.fetch("DELETE", f"/v1/async/{second['id']}")
        assert cancelled["status"] == "cancelled"
        await rig.fetch("DELETE", f"/v1/async/{first['id']}")
        assert (await rig.ended(first["id"])).state == "cancelled"
        await patiently(lambda: exchange.is_aborted)


async def test_what_a_stopping_runner_holds_waits_for_another(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        job = await rig.submit()
        await rig.exchange()
    async with open_rig(store, tmp_path) as rig:
        (await rig.exchange()).answer(200, b"{}")
        ended = await rig.ended(job["id"])
        assert (ended.state, ended.tries) == ("succeeded", 0)


async def test_a_runner_whose_lease_is_lost_stops_and_says_nothing(
    store: Store, tmp_path: Path, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "RENEW_S", 0.05)
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 1
        job = await rig.submit()
        exchange = await rig.exchange()
        redis_server.command("HINCRBY", f"{names.JOBS}job:{job['id']}", "fence", 1)  # another has it
        await patiently(lambda: exchange.is_aborted)
        await until(lambda: not rig.pages.runner.held)
        found = await rig.pages.book.find(job["id"])
        assert found is not None
        assert found.state == "running"


async def test_a_job_is_followed_as_a_stream(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        job = await rig.submit()
        exchange = await rig.exchange()
        accept = {"accept": "text/event-stream"}
        async with rig.session.get(f"/v1/async/{job['id']}", headers=accept) as response:
            first = await response.content.readuntil(b"\n\n")
            exchange.answer(200, b"{}")
            rest = await response.read()
        assert json.loads(first[6:])["status"] == "running"
        *events, done = rest.decode().strip().split("\n\n")
        assert (json.loads(events[-1][6:])["status"], done) == ("succeeded", "data: [DONE]")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"messages": None}, "messages"),
        ({"priority": -1}, "priority"),
        ({"max_time_in_queue_seconds": 0}, "max_time_in_queue_seconds"),
        ({"inference_retry_config": {"max_attempts": 0}}, "inference_retry_config.max_attempts"),
        ({"webhook_endpoint": "ftp://x"}, "webhook_endpoint"),
        ({"webhook_endpoint": "http://u:p@x/"}, "webhook_endpoint"),
        ({"webhook_endpoint": "http://[::1"}, "webhook_endpoint"),
        ({"webhook_endpoint": "http://10.0.0.1/"}, "webhook_endpoint"),
        ({"webhook_endpoint": "http://x/", "webhook_payload": "some"}, "webhook_payload"),
    ],
)
async def test_a_wrong_field_is_named(store: Store, tmp_path: Path, fields: dict[str, object], param: str) -> None:
    async with open_rig(store, tmp_path) as rig:
        body = {name: value for name, value in (CHAT | fields).items() if value is not None}
        status, told = await rig.fetch("POST", "/v1/async/chat/completions", body)
        assert (status, told["error"]["param"]) == (400, param)


async def test_the_same_key_gives_the_same_job(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path, answers=True) as rig:
        key = {"idempotency-key": "k"}
        _, first = await rig.fetch("POST", "/v1/async/chat/completions", CHAT, headers=key)
        _, second = await rig.fetch("POST", "/v1/async/chat/completions", CHAT, headers=key)
        _, other = await rig.fetch("POST", "/v1/async/chat/completions", CHAT, headers=key | {"x-tenant": "u"})
        assert (second["id"], other["id"] == first["id"]) == (first["id"], False)
        await rig.ended(first["id"])
        await rig.ended(other["id"])
        assert len(rig.upstream.exchanges) == 2
