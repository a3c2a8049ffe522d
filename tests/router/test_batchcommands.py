"""`pointsman batch` in this process, in front of a router that says what the test wants."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from router import batchcommands
from router.cli import _parser
from tests.fakes import until

LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}})


class FakeRouter:
    """Its batch goes through `states`, one each time that it is asked for; `refusals` come before."""

    def __init__(self) -> None:
        self.url = ""
        self.states = ["validating", "in_progress", "completed"]
        self.counts = {"total": 2, "completed": 2, "failed": 0}
        self.refusals: list[int] = []
        self.asked: list[tuple[str, str]] = []
        self.uploaded = b""
        self.created: dict[str, Any] = {}
        self.errors: list[dict[str, Any]] = []

    @property
    def num_looks(self) -> int:
        return self.asked.count(("GET", "/v1/batches/batch_1"))

    def batch(self) -> dict[str, Any]:
        status = self.states[min(self.num_looks, len(self.states) - 1)]
        files = {"output_file_id": "file-out", "error_file_id": None} if status == "completed" else {}
        return {
            "id": "batch_1",
            "status": status,
            "endpoint": "/v1/embeddings",
            "input_file_id": "file-in",
            "request_counts": self.counts,
            "errors": {"data": self.errors} if self.errors else None,
            **files,
        }

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path))
        if self.refusals:
            return web.json_response({"error": {"message": "not now"}}, status=self.refusals.pop(0))
        match (request.method, request.path):
            case ("POST", "/v1/files"):
                form = await request.post()
                self.uploaded = form["file"].file.read()  # type: ignore[union-attr]
                assert list(form) == ["purpose", "file"]
                return web.json_response({"id": "file-in"})
            case ("GET", "/v1/files/file-in"):
                return web.json_response({"id": "file-in", "filename": "../night.jsonl"})
            case ("GET", "/v1/files/file-out/content"):
                return web.Response(body=b'{"custom_id":"a"}\n')
            case ("POST", "/v1/batches"):
                self.created = await request.json()
                return web.json_response(self.batch())
            case ("POST", "/v1/batches/batch_1/cancel"):
                return web.json_response(self.batch() | {"status": "cancelling"})
            case ("GET", "/v1/batches"):
                return web.json_response({"data": [self.batch()]})
            case _:
                return web.json_response(self.batch())


@pytest.fixture
async def router(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeRouter]:
    fake, app = FakeRouter(), web.Application()
    monkeypatch.setattr(batchcommands, "POLL_S", 0.001)
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{site.port}"
    yield fake
    await runner.cleanup()


async def act(router: FakeRouter, action: str, *words: str) -> int:
    flags = _parser().parse_args(["batch", action, *words, "--url", router.url])
    steps = {
        "run": batchcommands._run,
        "resume": batchcommands._resume,
        "list": batchcommands._list,
        "cancel": batchcommands._cancel,
    }
    return await batchcommands._act(steps[action], flags)


def file_in(folder: Path, *lines: str) -> Path:
    path = folder / "night.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


async def test_a_file_is_uploaded_followed_and_fetched(
    router: FakeRouter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_in(tmp_path, "", LINE)
    assert await act(router, "run", str(path)) == 0
    assert router.uploaded == path.read_bytes()
    assert router.created == {
        "input_file_id": "file-in",
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    }
    assert (tmp_path / "night.results.jsonl").read_bytes() == b'{"custom_id":"a"}\n'
    told = capsys.readouterr()
    assert told.out == f"{tmp_path / 'night.results.jsonl'}\n"
    assert "batch_1 runs" in told.err
    assert "batch_1 completed: 2 of 2 done, 0 failed" in told.err


async def test_a_router_that_is_away_for_a_while_is_asked_again(router: FakeRouter, tmp_path: Path) -> None:
    path = file_in(tmp_path, LINE)
    running = asyncio.create_task(act(router, "run", str(path)))
    await until(lambda: router.created)
    router.refusals = [503, 502, 504]
    assert await running == 0
    assert not router.refusals


async def test_lines_that_failed_are_told_by_the_exit_status(
    router: FakeRouter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    router.counts["failed"] = 1
    assert await act(router, "run", str(file_in(tmp_path, LINE))) == 1
    router.states, router.errors = ["failed"], [{"line": 7, "message": "no"}]
    assert await act(router, "resume", "batch_1", "--output", str(tmp_path / "x")) == 1
    assert "line 7: no" in capsys.readouterr().err


async def test_results_of_a_batch_resumed_by_its_id_are_named_after_its_file(
    router: FakeRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert await act(router, "resume", "batch_1") == 0
    assert os.listdir(tmp_path) == ["night.results.jsonl"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("leave", "batch_1 is left running; its results: pointsman batch resume batch_1 --url"),
        ("cancel", "batch_1 is cancelling; what was done: pointsman batch resume batch_1 --url"),
    ],
)
async def test_an_interrupt_says_what_became_of_the_batch(
    router: FakeRouter, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, words: str
) -> None:
    router.states = ["in_progress"]
    running = asyncio.create_task(act(router, "run", str(file_in(tmp_path, LINE)), "--on-interrupt", how))
    await until(lambda: router.num_looks > 2)
    running.cancel()
    assert await running == 130
    assert words in capsys.readouterr().err
    assert (("POST", "/v1/batches/batch_1/cancel") in router.asked) == (how == "cancel")


async def test_what_the_router_refuses_is_said_in_its_words(
    router: FakeRouter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    router.refusals = [413]
    assert await act(router, "run", str(file_in(tmp_path, LINE))) == 1
    assert capsys.readouterr().err.endswith("pointsman: not now\n")
    assert await act(router, "run", str(file_in(tmp_path, "[]"))) == 1
    assert "its first line must be a JSON object with `url`" in capsys.readouterr().err
    assert await act(router, "run", str(tmp_path / "absent")) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err
    router.url = "http://127.0.0.1:9"
    assert await act(router, "list") == 1
    assert "no router answers at http://127.0.0.1:9" in capsys.readouterr().err


async def test_batches_are_listed_and_cancelled(router: FakeRouter, capsys: pytest.CaptureFixture[str]) -> None:
    assert await act(router, "list", "--limit", "5") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["BATCH", "STATUS", "DONE", "FAILED", "TOTAL", "CREATED", "ENDPOINT"]
    assert row.split()[:5] == ["batch_1", "validating", "2", "0", "2"]
    assert await act(router, "cancel", "batch_1") == 0
    assert capsys.readouterr().out == "batch_1 cancelling\n"
