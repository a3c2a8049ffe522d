"""`pointsman-load sim` from its flags to what it prints."""

import json
from pathlib import Path

import pytest

from loadtest.cli import main
from loadtest.errors import UsageError
from loadtest.flags import parse
from loadtest.simulator.command import plan
from loadtest.simulator.settings import SimSettings
from router.routing.presets import NAMES


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def settings(*flags: str) -> SimSettings:
    parsed = parse(["sim", *flags])
    assert isinstance(parsed, SimSettings)
    return parsed


def test_flags_change_what_the_scenario_says(scenario: Path) -> None:
    flags = (
        "--replicas",
        "5",
        "--host-tokens",
        "1000",
        "--routers",
        "2",
        "--no-kv-events",
        "--no-fair-shares",
        "--metrics-interval-ms",
        "50",
        "--half",
        "second",
        "--prefill",
        "2",
        "--decode",
        "3",
        "--kv-gigabytes-per-s",
        "5",
    )
    (task,) = plan(settings(str(scenario), "--policy", "random", *flags, "--load", "2", "--seeds", "3", "--seed", "7"))
    changed = task.scenario
    assert (changed.replicas, changed.host_tokens, changed.traces[0][-11:]) == (5, 1000, "small.jsonl")
    assert (changed.knowledge.routers, changed.knowledge.kv_events, changed.knowledge.metrics_interval_ms) == (
        2,
        False,
        50,
    )
    assert not changed.knowledge.fair_shares
    assert changed.half == "second"
    assert (changed.pairs.prefill, changed.pairs.decode, changed.pairs.gigabytes_per_s) == (2, 3, 5.0)
    assert (task.load, task.seeds) == (2.0, (7, 8, 9))


def test_a_recipe_is_simulated_by_its_file_and_anew_when_it_changes(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[picker]\ntype = "lowest-random-ties"\n[[scorers]]\ntype = "matched-share"')
    flags = ["sim", str(scenario), "--policy", f"{recipe},round-robin", "--load", "3", "--format", "json"]

    def attained() -> tuple[list[str], list[float]]:
        assert main(flags) == 0
        rows = json.loads(capsys.readouterr().out)
        return [row["policy"] for row in rows], [row["ttft_ms_mean"] for row in rows]

    names, before = attained()
    assert names == [str(recipe), "round-robin"]
    recipe.write_text('[picker]\ntype = "round-robin"')
    _, after = attained()
    assert after[0] == after[1] == before[1]
    assert after[0] != before[0]


def test_all_stands_for_every_policy_with_round_robin_first(scenario: Path) -> None:
    tasks = plan(settings(str(scenario), "--policy", "all", "--capacity"))
    assert tasks[0].policy == "round-robin"
    assert {task.policy for task in tasks} == set(NAMES)
    assert all(task.load is None for task in tasks)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["w1", "--policy", "pointsmann"], 'did you mean "pointsman"'),
        (["w1", "--policy", ","], "--policy"),
        (["w1", "--policy", "none.toml"], "cannot read the recipe none.toml"),
        (["w10"], "SCENARIO"),
        ([], "SCENARIO or --trace"),
        (["w1", "--trace", "x"], "SCENARIO or --trace"),
        (["w1", "--capacity", "--load", "2"], "--load"),
        (["w1", "--capacity", "--seeds", "2"], "--seeds"),
        (["w1", "--calm"], "--calm"),
        (["w1", "--seeds", "0"], "--seeds"),
        (["w1", "--half", "third"], "--half"),
        (["w5", "--half", "first"], "half needs traces"),
        (["w5", "--prefill", "3"], "pairs needs replicas of either role"),
        (["w5", "--prefill", "3", "--decode", "6"], "pairs needs 9 replicas, there are 8"),
        (["w1", "--load", "0"], "--load"),
        (["--trace", "nothing-of-that-name"], "--trace"),
        (["--trace", "arena_adapters_vtc", "--profile", "llama"], "--profile"),
    ],
)
def test_what_is_wrong_with_the_flags_is_named(flags: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        plan(settings(*flags))


def test_a_trace_and_a_profile_give_a_row_for_each_policy(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--profile", "llama3-8b-h100-tp1", "--replicas", "2", "--capacity", "--format", "json", "--quiet"]
    assert main(["sim", "--trace", str(trace), *flags, "--policy", "round-robin,pointsman"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["round-robin", "pointsman"]
    for row in rows:
        assert row["capacity"] > 0
        assert 0 <= row["hit_ratio"] <= row["bounds"]["infinite"] + 1e-9
        assert row["attainment"] >= 0.9
        assert {"goodput_per_s", "imbalance", "evictions", "preemptions", "tried", "load_unit"} <= row.keys()
        assert {f"{name}_ms_{p}" for name in ("ttft", "tpot") for p in ("p50", "p90", "p99")} <= row.keys()


def test_a_table_markdown_and_a_picture_are_made(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [str(scenario), "--policy", "round-robin,pointsman", "--load", "3", "--seeds", "2"]
    assert main(["sim", *flags, "--png", str(tmp_path / "a.png")]) == 0
    table = capsys.readouterr().out
    assert "a small one" in table
    assert "±" in table
    assert "Hit limits: infinite cache" in table
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert main(["sim", *flags, "--format", "markdown"]) == 0
    assert "handed over" not in table
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines] == ["| policy", "| ---", "| round-robin", "| pointsman"]


def test_a_cached_call_prints_the_same(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["sim", str(scenario), "--policy", "pointsman", "--load", "3", "--format", "json"]
    outputs = []
    for _ in range(2):
        main(flags)
        outputs.append(capsys.readouterr().out)
    main([*flags, "--no-cache"])
    assert outputs[0] == outputs[1] == capsys.readouterr().out
