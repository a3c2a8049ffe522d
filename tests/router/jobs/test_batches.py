"""Files and batches over the routes, as OpenAI's clients use them."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.jobs import files as shelves
from router.jobs import lines
from router.jobs.batches import Lost
from router.store import names
from router.store.connection import Store
from tests.router.jobs.rig import PATIENCE_S, Rig, open_rig, patiently
from tests.router.store.servers import Server

CHAT = "/v1/chat/completions"


def line(id: str, text: str = "hi", **fields: object) -> dict[str, object]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": id, "method": "POST", "url": CHAT, "body": body} | fields


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def start(rig: Rig, *given: object, **fields: object) -> dict[str, Any]:
    record = await rig.upload(*given)
    asked = {"input_file_id": record["id"], "endpoint": CHAT, "completion_window": "24h"} | fields
    status, batch = await rig.fetch("POST", "/v1/batches", asked)
    assert status == 200, batch
    return batch


async def test_a_batch_runs_each_line_and_tells_results_by_custom_id(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path, answers=True) as rig:
        given = [line(f"c{number}", "bad" if number % 10 == 3 else f"text {number}") for number in range(45)]
        batch = await start(rig, *given, metadata={"a": "b"})
        assert (batch["status"], batch["object"], batch["metadata"]) == ("validating", "batch", {"a": "b"})
        done = await rig.batch_over(batch["id"])
        assert done["status"] == "completed"
        assert done["request_counts"] == {"total": 45, "completed": 40, "failed": 5}
        output, errors = await rig.content(done["output_file_id"]), await rig.content(done["error_file_id"])
        assert {each["custom_id"]: each["response"]["body"]["said"] for each in output} == {
            f"c{number}": f"text {number}" for number in range(45) if number % 10 != 3
        }
        assert {each["custom_id"] for each in errors} == {f"c{number}" for number in (3, 13, 23, 33, 43)}
        assert errors[0]["response"]["status_code"] == 400
        assert all(each["error"] is None for each in output)
        moments = [done[f"{moment}_at"] for moment in ("created", "in_progress", "finalizing", "completed")]
        assert moments == sorted(moments)


async def test_what_is_wrong_with_lines_is_told_with_their_numbers(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        given = [
            line("a"),
            line("a"),
            "{nonsense",
            line("b", url="/v1/embeddings"),
            line("c", method="GET"),
            {"custom_id": "d"},
            line("e", body={"messages": []}),
            line("f", body={"model": "m", "stream": True}),
        ]
        batch = await rig.batch_over((await start(rig, *given))["id"])
        assert (batch["status"], batch["output_file_id"]) == ("failed", None)
        told = [(error["line"], error["code"]) for error in batch["errors"]["data"]]
        assert told == [
            (2, "duplicate_custom_id"),
            (3, "invalid_json_line"),
            (4, "mismatched_url"),
            (5, "invalid_method"),
            (6, "invalid_json_line"),
            (7, "invalid_json_line"),
            (8, "invalid_request"),
        ]
        assert rig.upstream.exchanges == []


async def test_an_empty_file_and_too_many_lines_fail(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 2)
    async with open_rig(store, tmp_path) as rig:
        empty = await rig.batch_over((await start(rig, ""))["id"])
        assert empty["errors"]["data"][0]["code"] == "empty_file"
        many = await rig.batch_over((await start(rig, line("a"), line("b"), line("c")))["id"])
        assert many["errors"]["data"][0]["code"] == "too_many_lines"


async def test_a_line_that_is_too_long_is_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 300)
    async with open_rig(store, tmp_path) as rig:
        batch = await rig.batch_over((await start(rig, line("a"), line("b", "x" * 1000), line("c")))["id"])
        assert [(each["line"], each["code"]) for each in batch["errors"]["data"]] == [(2, "line_too_long")]


async def test_a_batch_that_is_cancelled_keeps_what_was_done_and_tells_the_rest(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 2
        batch = await start(rig, *(line(f"c{number}") for number in range(50)))
        for number in range(3):
            (await rig.exchange(number)).answer(200, b"{}")
        await patiently(lambda: len(rig.upstream.exchanges) == 5)
        rig.room[0] = 0
        _, told = await rig.fetch("POST", f"/v1/batches/{batch['id']}/cancel")
        assert told["status"] == "cancelling"
        for number in (3, 4):
            (await rig.exchange(number)).answer(200, b"{}")
        done = await rig.batch_over(batch["id"])
        counts = done["request_counts"]
        assert (done["status"], counts["total"], counts["completed"] + counts["failed"]) == ("cancelled", 50, 50)
        errors = await rig.content(done["error_file_id"])
        output = await rig.content(done["output_file_id"])
        assert {each["custom_id"] for each in [*output, *errors]} == {f"c{number}" for number in range(50)}
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}


async def test_a_batch_that_expires_has_partial_results(store: Store, tmp_path: Path, redis_server: Server) -> None:
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 1
        batch = await start(rig, *(line(f"c{number}") for number in range(30)))
        (await rig.exchange()).answer(200, b"{}")
        second = await rig.exchange(1)
        rig.room[0] = 0
        redis_server.command("HSET", f"{names.JOBS}batch:{batch['id']}", "expires", 1)
        second.answer(200, b"{}")
        done = await rig.batch_over(batch["id"])
        assert (done["status"], done["request_counts"]["total"]) == ("expired", 30)
        output, errors = await rig.content(done["output_file_id"]), await rig.content(done["error_file_id"])
        assert len(output) + len(errors) == 30
        assert len(output) >= 1


async def test_another_router_goes_on_where_a_batch_stood_and_runs_no_line_twice(
    store: Store, tmp_path: Path, redis_server: Server
) -> None:
    given = [line(f"c{number}") for number in range(60)]
    seen: list[str] = []
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 4
        batch = await start(rig, *given)
        for number in range(10):
            exchange = await rig.exchange(number)
            exchange.answer(200, json.dumps({"said": number}).encode())
            seen.append(json.loads(exchange.attempt.body)["messages"][0]["content"])
        async with asyncio.timeout(PATIENCE_S):
            path = f"/v1/batches/{batch['id']}"
            while (await rig.fetch("GET", path))[1]["request_counts"]["completed"] < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    out = tmp_path / f"{batch['id']}.out.part"
    with out.open("ab") as file:  # as if it had died between the disk and Redis
        file.write(b'{"custom_id": "ghost"}\n')
    redis_server.command("ZADD", names.JOBS + "batches", 0, batch["id"])
    async with open_rig(store, tmp_path, answers=True) as rig:
        done = await rig.batch_over(batch["id"])
        assert done["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        output = await rig.content(done["output_file_id"])
        assert sorted(each["custom_id"] for each in output) == sorted(f"c{number}" for number in range(60))
        assert len(rig.upstream.exchanges) == 50


async def test_who_has_lost_a_batch_writes_nothing_more(store: Store, tmp_path: Path, redis_server: Server) -> None:
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 0
        batch = await start(rig, line("a"))
        await asyncio.sleep(0.5)
        runner = rig.batch_runner
        found = await runner.batches.get(batch["id"])
        assert found is not None
        with pytest.raises(Lost):
            await runner._over(found, 99, found.state)
        rig.room[0] = 1
        (await rig.exchange()).answer(200, b"{}")
        await rig.batch_over(batch["id"])


async def test_batches_are_listed_by_owner_in_pages(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path, answers=True) as rig:
        ids = []
        for _ in range(3):
            ids.append((await start(rig, line("a")))["id"])
            await rig.batch_over(ids[-1])
        _, page = await rig.fetch("GET", "/v1/batches?limit=2")
        assert ([batch["id"] for batch in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
        _, page = await rig.fetch("GET", f"/v1/batches?limit=2&after={ids[1]}")
        assert ([batch["id"] for batch in page["data"]], page["has_more"]) == ([ids[0]], False)
        _, others = await rig.fetch("GET", "/v1/batches", headers={"x-tenant": "other"})
        assert others["data"] == []
        status, _ = await rig.fetch("GET", f"/v1/batches/{ids[0]}", headers={"x-tenant": "other"})
        assert status == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/other"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
async def test_a_wrong_batch_is_refused(store: Store, tmp_path: Path, fields: dict[str, object], param: str) -> None:
    async with open_rig(store, tmp_path) as rig:
        record = await rig.upload(line("a"))
        asked = {"input_file_id": record["id"], "endpoint": CHAT, "completion_window": "24h"} | fields
        status, told = await rig.fetch("POST", "/v1/batches", asked)
        assert (status in (400, 404), told["error"]["param"]) == (True, param)


async def test_files_are_kept_listed_read_and_deleted_by_their_owner_alone(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        record = await rig.upload({"a": 1}, {"b": 2})
        told = [record[name] for name in ("object", "purpose", "filename", "bytes")]
        assert told == ["file", "batch", "in.jsonl", 17]
        assert "owner" not in record
        assert await rig.content(record["id"]) == [{"a": 1}, {"b": 2}]
        _, listed = await rig.fetch("GET", "/v1/files?purpose=batch")
        assert [each["id"] for each in listed["data"]] == [record["id"]]
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            status, _ = await rig.fetch(method, f"/v1/files/{record['id']}{path}", headers={"x-tenant": "other"})
            assert status == 404
        _, gone = await rig.fetch("DELETE", f"/v1/files/{record['id']}")
        assert gone["deleted"] is True
        assert names_in(tmp_path) == []


async def test_a_batch_of_a_file_that_was_deleted_fails(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        record = await rig.upload(line("a"))
        asked = {"input_file_id": record["id"], "endpoint": CHAT, "completion_window": "24h"}
        _, batch = await rig.fetch("POST", "/v1/batches", asked)
        (tmp_path / f"{record['id']}.json").unlink()
        done = await rig.batch_over(batch["id"])
        assert done["status"] in ("failed", "completed"), done


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"purpose": "batch"}, "file"),
        ({"file": b"x"}, "purpose"),
        ({"purpose": "other", "file": b"x"}, "purpose"),
        ({"file": b"x", "other": "y"}, "purpose"),
    ],
)
async def test_a_wrong_upload_is_refused(store: Store, tmp_path: Path, form: dict[str, Any], param: str) -> None:
    async with open_rig(store, tmp_path) as rig:
        given = aiohttp.FormData()
        for name, value in form.items():
            given.add_field(name, value, filename="f" if name == "file" else None)
        async with rig.session.post("/v1/files", data=given) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, param)


async def test_files_have_a_limit_and_owners_a_share(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", b"x" * 100_001, filename="f")
        async with rig.session.post("/v1/files", data=form) as response:
            assert response.status == 413
        for _ in range(2):
            await rig.upload("x" * 99_000)
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", b"x" * 99_000, filename="f")
        async with rig.session.post("/v1/files", data=form) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (507, "no_space")
        assert not [name for name in names_in(tmp_path) if name.endswith(".part")]


@pytest.mark.parametrize(("purpose", "status"), [("batch", 200), ("other", 400)])
async def test_an_uploads_connection_ends_with_its_answer(
    store: Store, tmp_path: Path, purpose: str, status: int
) -> None:
    """It is aiohttp's, which knows no inference: a chat that came next on it would be lost."""
    async with open_rig(store, tmp_path) as rig:
        form = aiohttp.FormData({"purpose": purpose})
        form.add_field("file", b"x", filename="f")
        async with rig.session.post("/v1/files", data=form, headers={"connection": "keep-alive"}) as response:
            assert (response.status, response.headers["connection"]) == (status, "close")


async def for_batches() -> str:
    return "batch"


async def test_the_purpose_may_stand_behind_the_file(store: Store, tmp_path: Path) -> None:
    async with open_rig(store, tmp_path) as rig:
        for purpose, status in (("batch", 200), ("other", 400)):
            form = aiohttp.FormData()
            form.add_field("file", b"x" * 1000, filename="f")
            form.add_field("purpose", purpose)
            async with rig.session.post("/v1/files", data=form) as response:
                assert response.status == status
                told = await response.json()
        assert told["error"]["param"] == "purpose"
        _, listed = await rig.fetch("GET", "/v1/files")
        assert [record["purpose"] for record in listed["data"]] == ["batch"]
        assert not [name for name in names_in(tmp_path) if name.endswith(".part")]


async def test_an_upload_that_breaks_off_and_a_full_disk_leave_nothing(tmp_path: Path) -> None:
    async def pieces(error: BaseException) -> Any:
        yield b"x"
        raise error

    shelf = shelves.Shelf(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        await shelf.put("o", "f", for_batches, pieces(asyncio.CancelledError()))
    with pytest.raises(shelves.NoSpace):
        await shelf.put("o", "f", for_batches, pieces(OSError(errno.ENOSPC, "full")))
    assert names_in(tmp_path) == []


async def test_what_has_expired_is_swept(tmp_path: Path) -> None:
    async def pieces() -> Any:
        yield b"x"

    now = [1000.0]
    shelf = shelves.Shelf(tmp_path, wall=lambda: now[0])
    record = await shelf.put("o", "f", for_batches, pieces(), keep_s=10.0)
    await shelf.sweep()
    assert (await shelf.get("o", record.id)).expires_at == 1010
    now[0] = 1011.0
    with pytest.raises(shelves.UnknownFile):
        await shelf.get("o", record.id)
    await shelf.sweep()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("id", ["", "..", "file-../../etc/passwd", "file-" + "a" * 23, "file-" + "G" * 24])
async def test_an_id_is_no_path(tmp_path: Path, id: str) -> None:
    with pytest.raises(shelves.UnknownFile):
        await shelves.Shelf(tmp_path).get("o", id)
