import asyncio
import json
import logging
import os
from array import array
from pathlib import Path

import msgspec
import pytest

from router.config import ConfigError, Settings
from router.core import Decision, Lease, Prompt, Usage
from router.telemetry.recording import MAX_PENDING, Recording, State, open_recording
from tests.router.nouns import make_demand, make_replica, make_request
from tests.router.telemetry.test_journal import Lines

MEGABYTE = 2**20
SECRET = "the prompt"


class Desk:
    def __init__(self, path: Path, max_bytes: int = MEGABYTE) -> None:
        self.path = path
        self.lines = Lines()
        logger = logging.Logger("test", logging.WARNING)
        logger.addHandler(self.lines)
        self.recording = Recording(str(path), max_bytes, logger)

    def note(self, arrived: float = 5.0, num_output_tokens: int | None = 7, num_events: int = 0) -> None:
        request = make_request(SECRET, arrived=arrived, model=SECRET, body=SECRET.encode())
        prompt = Prompt(num_tokens=40, block_hashes=array("Q", [2**64 - 1, 3]), block_size=16)
        demand = msgspec.structs.replace(make_demand(), request=request, prompt=prompt)
        decision = Decision(make_replica(SECRET), "pointsman", 0, 40, 0.0, {})
        lease = Lease(demand, decision, 6.0, lambda _: None, lambda _: None)
        self.recording.note(lease, Usage(output_tokens=num_output_tokens), num_events)

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    @property
    def said(self) -> list[str]:
        return [record.getMessage() for record in self.lines.records]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "trace.jsonl")


async def test_a_row_has_arrival_lengths_and_hashes_and_nothing_else(desk: Desk) -> None:
    desk.note(arrived=5.0)
    desk.note(arrived=6.5)
    await desk.recording.flush()
    first, second = desk.rows
    assert first.pop("at_s") == pytest.approx(float(str(second.pop("at_s"))) - 1.5, abs=1e-5)
    assert first == second
    assert first == {"prompt_tokens": 40, "output_tokens": 7, "block_size": 16, "block_hashes": [2**64 - 1, 3]}
    assert SECRET not in desk.path.read_text()
    await desk.recording.close()


async def test_where_no_tokens_were_counted_the_events_of_a_stream_stand_for_them(desk: Desk) -> None:
    desk.note(num_output_tokens=None, num_events=12)
    desk.note(num_output_tokens=0, num_events=12)
    await desk.recording.close()
    assert [row["output_tokens"] for row in desk.rows] == [12, 0]


async def test_a_note_writes_nothing_and_the_end_writes_all(desk: Desk) -> None:
    desk.note()
    assert desk.rows == []
    await desk.recording.close()
    assert len(desk.rows) == 1


async def test_two_processes_share_a_file_and_an_older_one_goes_on(desk: Desk) -> None:
    other = Desk(desk.path)
    for each in (desk, other, desk):
        each.note()
        await each.recording.flush()
    await asyncio.gather(desk.recording.close(), other.recording.close())
    assert len(desk.rows) == 3


async def test_the_file_stays_within_its_limit_and_ends_with_a_whole_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "trace.jsonl", max_bytes=1000)
    for _ in range(100):
        desk.note()
    await desk.recording.flush()
    assert 800 < desk.path.stat().st_size <= 1000
    assert all(row["prompt_tokens"] == 40 for row in desk.rows)
    assert (desk.recording.state, len(desk.said)) == (State.FULL, 1)
    desk.note()
    await desk.recording.close()
    assert repr(desk.recording).endswith("FULL 0 pending>")


async def test_a_disk_that_fails_ends_the_recording_and_not_the_router(desk: Desk) -> None:
    os.close(desk.recording._file)
    desk.recording._file = os.open(desk.path, os.O_RDONLY)
    desk.note()
    await desk.recording.flush()
    assert desk.recording.state is State.BROKEN
    assert desk.said == ["recording has ended: the file cannot be written"]
    desk.note()
    await desk.recording.close()


async def test_what_piles_up_is_bounded_and_counted(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "trace.jsonl", max_bytes=100 * MEGABYTE)
    for _ in range(MAX_PENDING + 2):
        desk.note()
    assert desk.recording.num_lost == 2
    await desk.recording.close()
    assert (len(desk.rows), desk.said) == (MAX_PENDING, ["requests were not recorded: the disk is too slow"])


async def test_only_its_owner_may_read_it(desk: Desk) -> None:
    assert desk.path.stat().st_mode & 0o777 == 0o600
    await desk.recording.close()


def test_a_file_that_cannot_be_opened_is_a_wrong_setting(tmp_path: Path) -> None:
    logger = logging.Logger("test")
    assert open_recording(Settings(), logger) is None
    with pytest.raises(ConfigError, match="`record` cannot be written: No such file"):
        open_recording(Settings(record=str(tmp_path / "missing" / "trace.jsonl")), logger)
