import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from loadtest.cli import main
from tests.loadtest import fake_server as fake
from tests.loadtest.fake_server import FakeServer


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("run", 2, "--rate or --concurrency"),
        ("run --ratee 4", 2, "did you mean --rate?"),
        ("run --trace nosuch", 2, "--trace: 'nosuch'"),
        ("run --rate 1 --png /nosuch/a.png", 2, "--png: /nosuch/a.png is not a file in an existing folder"),
        ("run --rate 1 --json /", 2, "--json: / is not a file"),
        ("run --rate 1 --url http://127.0.0.1:9", 1, "--url: cannot reach http://127.0.0.1:9/v1/models"),
        ("cancel --url http://127.0.0.1:9", 1, "--url: cannot reach"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    line: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("pointsman-load: ")
    assert words in told.err
    assert told.err.count("\n") == 1


async def command(*arguments: str) -> Process:
    start = "import sys; from loadtest.cli import main; sys.exit(main())"
    return await asyncio.create_subprocess_exec(sys.executable, "-c", start, *arguments, stdout=PIPE, stderr=PIPE)


@pytest.mark.slow
async def test_a_run_prints_the_table_and_writes_the_files(server: FakeServer, tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "a.json"), "--png", str(tmp_path / "a.png"))
    process = await command("run", "--url", server.url, "--concurrency", "3", "--requests", "12", *files)
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert "12 succeeded, 0 failed" in out.decode()
    assert json.loads((tmp_path / "a.json").read_text())["results"]["requests_by_replica"] == {"r1": 12}
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
async def test_failures_set_the_exit_code_unless_allowed(server: FakeServer) -> None:
    line = ("run", "--url", server.url, "--concurrency", "1", "--requests", "4")
    server.script = [fake.cut]
    strict = await command(*line)
    await strict.communicate()
    server.script = [fake.cut]
    lenient = await command(*line, "--max-error-share", "0.25")
    await lenient.communicate()
    assert (strict.returncode, lenient.returncode) == (1, 0)


@pytest.mark.slow
async def test_an_interrupt_prints_what_was_measured(server: FakeServer) -> None:
    server.script = [fake.whole] * 2
    server.otherwise = fake.endless
    process = await command("run", "--url", server.url, "--concurrency", "1")
    await server.until(lambda: len(server.bodies) == 3)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130
    assert "2 succeeded, 0 failed" in out.decode()
    assert "Interrupted; 1 requests in flight" in out.decode()
    assert b"Traceback" not in err


@pytest.mark.slow
async def test_an_interrupt_before_the_run_is_silent(server: FakeServer) -> None:
    server.models_gate = asyncio.Event()
    process = await command("run", "--url", server.url, "--concurrency", "1")
    await server.until(lambda: server.num_lookups == 1)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.slow
async def test_cancels_are_printed(server: FakeServer) -> None:
    server.script = [fake.gated]
    server.otherwise = fake.endless
    process = await command("cancel", "--url", server.url, "--samples", "1", "--input-tokens", "8")
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert "in mid-stream" in out.decode()
