import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from loadtest.cli import main
from loadtest.errors import UsageError
from loadtest.peers.launch import FEATURES, OURS
from loadtest.peers.run import chosen_rows, default_scratch
from loadtest.peers.settings import PeersSettings


def test_an_unknown_router_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--only: 'ngnix' is not one of .*; did you mean nginx\?"):
        chosen_rows(PeersSettings(only="ngnix"))


def test_features_bring_the_yardstick_and_our_plain_row() -> None:
    rows = chosen_rows(PeersSettings(features=True))
    assert [row.name for row in rows[:2]] == ["nginx", "pointsman"]
    assert rows[1:] == (OURS[0], *FEATURES)


def test_what_is_kept_is_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_scratch() == Path("/cache/pointsman/peers")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_scratch() == Path.home() / ".cache/pointsman/peers"


def test_a_picture_that_cannot_be_written_is_told_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "--png", "/nosuch/a.png"]) == 2
    assert "--png: /nosuch/a.png" in capsys.readouterr().err


async def command(*arguments: str) -> asyncio.subprocess.Process:
    start = "import sys; from loadtest.cli import main; sys.exit(main())"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, "peers", *arguments, stdout=PIPE, stderr=PIPE
    )


def left_behind(scratch: Path) -> list[str]:
    """Commands that run from the scratch folder."""
    commands = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                said = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(scratch) in said and "loadtest.cli" not in said:
                commands.append(said)
    return commands


@pytest.mark.slow
async def test_our_router_is_measured_without_a_fault(tmp_path: Path) -> None:
    process = await command(
        "--only", "pointsman-new-tail", "--rounds", "1", "--seconds", "0.3", "--scratch", str(tmp_path),
        "--format", "json", "--png", str(tmp_path / "a.png"),
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    row = json.loads(out)["pointsman-new-tail"]
    assert (row["num_errors"], row["failure"], row["rounds"]) == (0, None, 1)
    assert row["cpu_us_500b"] > 0
    assert 0.5 < row["hit_share"]["8k"] <= 1
    assert (tmp_path / "a.png").exists()
    assert left_behind(tmp_path) == []


@pytest.mark.slow
async def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    process = await command("--only", "pointsman", "--scratch", str(tmp_path))
    assert process.stderr is not None
    async with asyncio.timeout(100):
        while not (line := await process.stderr.readline()).startswith(b"round 1"):
            assert line, "it ended before its first round"
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 130
    assert left_behind(tmp_path) == []
