"""What fair shares cost and are worth: how a gap is told, and the search on a trace of its own."""

import random
from pathlib import Path

import pytest

from loadtest.admission import __main__ as command
from loadtest.admission import tenants
from loadtest.admission.tenants import gap
from loadtest.simulator.job import Job
from loadtest.simulator.profile import profile
from loadtest.simulator.workload import Writer


def job(tenant: str, arrived_s: float, placed_s: float, ended_s: float, num_tokens: int) -> Job:
    """One that takes so many tokens: all but the last are prompt."""
    writer = Writer(profile("llama3-8b-h100-tp1"), 64)
    ask = writer.ask(0, ((1, num_tokens - 1),), 1, tenant=tenant)
    return Job(ask, arrived_s, is_counted=True, placed_s=placed_s, ended_s=ended_s)


def test_a_gap_is_what_one_was_served_more_while_both_waited() -> None:
    waits = [job("a", 0.0, 10.0, 11.0, 5), job("b", 1.0, 9.0, 11.0, 5)]
    before = [job("a", 0.0, 0.5, 0.6, 1000), job("b", 9.0, 9.5, 9.6, 2000)]
    between = [job("a", 0.0, 2.0, 2.5, 30), job("b", 1.0, 3.0, 3.5, 10), job("a", 2.0, 4.0, 4.5, 40)]
    found = gap([*waits, *before, *between])
    assert found.tokens == 30 - 10 + 40
    assert found.bound == 2 * (2000 + 5), "b had two in flight"


def test_who_never_waited_together_are_never_apart() -> None:
    alone = [job("a", 0.0, 1.0, 2.0, 100), job("b", 1.0, 2.0, 3.0, 700), job("c", 0.0, 0.0, 3.0, 900)]
    assert gap(alone).tokens == 0
    assert gap([]).bound == 0


def test_the_cost_of_fair_shares_is_searched_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, trace, scenario = random.Random(0), tmp_path / "small.csv", tmp_path / "small.toml"
    rows = [f"{n * 0.1},{chance.choice([1, 1, 1, 2, 3])},{chance.randrange(200, 900)},40" for n in range(500)]
    trace.write_text("\n".join(["t_s,tenant_id,input_tokens,output_tokens", *rows]) + "\n")
    lines = ('about = "a small one"', 'profile = "llama3-8b-h100-tp1"', "replicas = 1", "seconds = 30.0")
    scenario.write_text("\n".join((*lines, f'traces = ["{trace}"]')) + "\n")
    for name, value in (("SCENARIO", str(scenario)), ("START", 10.0), ("STEP", 1.6), ("RESOLUTION", 1.7)):
        monkeypatch.setattr(tenants, name, value)
    assert command.main(["tenants", "--begin", "20"]) == 0
    found, mean = capsys.readouterr().out.splitlines()
    assert found.startswith("from 20 s: capacity ")
    assert mean.startswith("fair shares cost of capacity: ")
