"""The benchmarks of caches: that they measure what they say, on little of it."""

import pytest

from loadtest import micro, micro_caches
from loadtest.micro_caches import Row


def values(rows: list[Row]) -> dict[str, float]:
    return {row.name: row.value for row in rows}


@pytest.mark.slow
def test_events_are_taken_in_live_and_by_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = values(micro_caches.measure_events(num_batches=600, live_s=0.5))
    assert all(value >= 0 for value in rows.values())
    assert rows["live: of those sent"] > 50
    assert rows["events to changes (decode, re-hash, names)"] > rows["msgpack to objects"]


def test_the_index_is_measured_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    rows = micro_caches.measure_index(20_000)
    assert 40 < values(rows)["memory, keys included"] < 250
    micro_caches.print_rows("index", rows)
    assert "remove a replica" in capsys.readouterr().out


def test_each_core_has_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(micro, "measure_index", lambda: [Row("blocks", 1.0, "bytes")])
    monkeypatch.setattr(micro, "measure_events", lambda: [Row("batches", 2.0, "a second", 3.0)])
    assert micro.main(["index"]) == 0
    assert micro.main(["events"]) == 0
    out = capsys.readouterr().out
    assert "blocks" in out
    assert "batches" in out
