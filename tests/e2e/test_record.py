"""What a router records of real traffic is a trace that the load generator replays and the simulator reads."""

import json
import subprocess
from pathlib import Path

import pytest

from loadtest.trace import load_trace
from tests.e2e.company import ask, company
from tests.e2e.fake_replica import fake_replicas
from tests.e2e.fleet import BIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LONG = "tell me of railways " * 40


def test_two_workers_record_one_trace_that_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    with fake_replicas(1) as (replica,):
        with company([replica], record=path) as fleet:
            for number in range(12):
                words = LONG + f"and of number {number} " * 9
                assert ask(fleet, words, num_tokens=3)[0] == 200
        text = path.read_text()
        trace = load_trace(str(path), seed=0)
        assert len(trace.rows) == 12
        assert "railways" not in text
        assert {row.num_output_tokens for row in trace.rows} <= {3, 4, 5}, "no usage was asked for: events are counted"
        first, second = trace.rows[:2]
        assert len(first.block_ids) > 5
        assert first.block_ids[:5] == second.block_ids[:5], "they begin alike"
        assert first.block_ids[-1] != second.block_ids[-1], "and end otherwise"
        served = replica.num_served
        with company([replica], workers=1) as fleet:
            report = tmp_path / "report.json"
            command = [str(BIN / "pointsman-load"), "run", "--url", fleet.url, "--trace", str(path), "--model", "m"]
            subprocess.run([*command, "--quiet", "--json", str(report)], check=True, timeout=60)
        assert replica.num_served - served == 12
        assert json.loads(report.read_text())
