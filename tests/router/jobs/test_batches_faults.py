"""Batches where something goes wrong half-way: files that vanish, disks that are full, processes that die."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from router.jobs import lines
from router.jobs.batches import Batch, BatchRunner, BatchState, Lost
from router.jobs.files import Shelf
from router.jobs.results import Results
from router.store import names
from router.store.connection import Store
from tests.router.jobs.rig import PATIENCE_S, Rig, open_rig, patiently
from tests.router.jobs.test_batches import line, names_in, start
from tests.router.store.servers import Server


async def test_a_batch_that_is_cancelled_while_its_file_is_read_runs_no_line(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read, may_go_on = threading.Event(), threading.Event()
    validate = lines.validate

    def slowly(path: Path, endpoint: str) -> tuple[int, list[lines.Fault]]:
        is_read.set()
        assert may_go_on.wait(30)
        return validate(path, endpoint)

    monkeypatch.setattr(lines, "validate", slowly)
    async with open_rig(store, tmp_path) as rig:
        batch = await start(rig, *(line(f"c{number}") for number in range(5)))
        await patiently(is_read.is_set)
        _, told = await rig.fetch("POST", f"/v1/batches/{batch['id']}/cancel")
        may_go_on.set()
        assert told["status"] == "cancelling"
        done = await rig.batch_over(batch["id"])
        assert (done["status"], done["request_counts"]) == ("cancelled", {"total": 5, "completed": 0, "failed": 5})
        assert len(await rig.content(done["error_file_id"])) == 5
        assert not rig.upstream.exchanges


async def test_a_batch_whose_file_is_deleted_while_it_runs_keeps_what_was_done_and_fails(
    store: Store, tmp_path: Path
) -> None:
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 2
        batch = await start(rig, *(line(f"c{number}") for number in range(50)))
        (await rig.exchange()).answer(200, b"{}")
        await rig.fetch("DELETE", f"/v1/files/{batch['input_file_id']}")
        rig.room[0] = 8
        answering = asyncio.create_task(answer_all(rig, since=1))
        done = await rig.batch_over(batch["id"])
        answering.cancel()
        assert (done["status"], done["errors"]["data"][0]["code"]) == ("failed", "input_file_deleted")
        output = await rig.content(done["output_file_id"])
        assert len(output) == done["request_counts"]["completed"] == len(rig.upstream.exchanges)
        assert f"behind line {len(output)} was" in done["errors"]["data"][0]["message"]
        assert not [name for name in names_in(tmp_path) if name.endswith(".part")]


async def test_a_batch_whose_disk_is_full_waits_and_goes_on_once_there_is_room(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: Server
) -> None:
    append, num_refused = Results.append, 0

    def full(results: Results, out: bytes, err: bytes) -> None:
        nonlocal num_refused
        if num_refused < 2:
            append(results, out[:10], b"")  # some of it was written
            num_refused += 1
            raise OSError(errno.ENOSPC, "no space left on device")
        append(results, out, err)

    monkeypatch.setattr(Results, "append", full)
    async with open_rig(store, tmp_path, answers=True) as rig:
        batch = await start(rig, *(line(f"c{number}") for number in range(30)))
        for number in (1, 2):
            await patiently(lambda: num_refused >= number)  # noqa: B023  (it is waited for here)
            redis_server.command("ZADD", names.JOBS + "batches", 0, batch["id"])  # its lease is over
        done = await rig.batch_over(batch["id"])
        assert (done["status"], done["request_counts"]["completed"]) == ("completed", 30)
        output = await rig.content(done["output_file_id"])
        assert sorted(each["custom_id"] for each in output) == sorted(f"c{number}" for number in range(30))
        assert len(rig.upstream.exchanges) == 30


async def test_a_death_between_the_disk_and_the_last_word_gives_the_same_file_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: Server
) -> None:
    over, has_died = BatchRunner._over, asyncio.Event()

    async def dies(runner: BatchRunner, batch: Batch, fence: int, state: BatchState) -> None:
        if not has_died.is_set():
            has_died.set()
            raise Lost
        await over(runner, batch, fence, state)

    monkeypatch.setattr(BatchRunner, "_over", dies)
    async with open_rig(store, tmp_path, answers=True) as rig:
        batch = await start(rig, line("a"), line("b"))
        await asyncio.wait_for(has_died.wait(), PATIENCE_S)
        redis_server.command("ZADD", names.JOBS + "batches", 0, batch["id"])
        done = await rig.batch_over(batch["id"])
        assert {each["custom_id"] for each in await rig.content(done["output_file_id"])} == {"a", "b"}
        _, files = await rig.fetch("GET", "/v1/files?purpose=batch_output")
        assert len(files["data"]) == 1
    assert not [name for name in names_in(tmp_path) if name.endswith((".part", ".link"))]


async def test_lines_for_a_model_that_vanishes_fail_with_its_error_and_the_batch_ends(
    store: Store, tmp_path: Path
) -> None:
    async with open_rig(store, tmp_path) as rig:
        rig.room[0] = 1
        batch = await start(rig, *(line(f"c{number}") for number in range(5)))
        (await rig.exchange()).answer(200, b"{}")
        last = await rig.exchange(1)
        rig.station.registry.reconcile([])
        last.answer(200, b"{}")
        done = await rig.batch_over(batch["id"])
        assert (done["status"], done["request_counts"]) == ("completed", {"total": 5, "completed": 2, "failed": 3})
        errors = await rig.content(done["error_file_id"])
        assert {each["response"]["body"]["error"]["code"] for each in errors} == {"model_not_found"}


async def test_what_a_killed_process_left_of_an_upload_is_swept(tmp_path: Path) -> None:
    left, young = tmp_path / f"file-{'a' * 24}.part", tmp_path / f"file-{'b' * 24}.part"
    for path in (left, young):
        path.write_bytes(b"half")
    os.utime(left, (1.0, 1.0))
    await Shelf(tmp_path).sweep()
    assert names_in(tmp_path) == [young.name]


async def answer_all(rig: Rig, since: int) -> None:
    while True:
        (await rig.exchange(since)).answer(200, b"{}")
        since += 1
