"""Scenario files: all that are shipped make sense, and what is wrong in one is named."""

from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.simulator.pairs import Pairs
from loadtest.simulator.scenario import load_scenario, shipped_scenarios
from loadtest.simulator.sessions import Users

GOOD = """
about = "a test"
profile = "llama3-8b-h100-tp1"
replicas = 2
traces = ["arena_adapters_vtc"]
"""
ADAPTERS = "[adapters]\nslots = 8\nhost_slots = 8\nrank = 8\nbytes_per_rank = 1000\nstep_share = 0.02\n"


@pytest.mark.parametrize("name", shipped_scenarios())
def test_a_shipped_scenario_loads_by_its_name_and_by_its_first_letters(name: str) -> None:
    scenario = load_scenario(name)
    assert load_scenario(name.split("_")[0]) == scenario
    assert scenario.about


def test_w1_to_w9_are_shipped() -> None:
    assert {f"w{number}" for number in range(1, 10)} <= {name.split("_")[0] for name in shipped_scenarios()}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD + "replica = 3", "replica"),
        (GOOD.replace("replicas = 2", "replicas = 0"), "replicas"),
        (GOOD.replace("llama3-8b-h100-tp1", "llama"), "--profile"),
        (GOOD + "load = 0.0", "load"),
        (GOOD + "copies = 0", "copies"),
        (GOOD + "seconds = -1.0", "seconds"),
        (GOOD + "begin_s = -1.0", "begin_s"),
        (GOOD.replace("traces", "#") + 'begin_s = 1.0\n[sessions]\nkind = "deep-research"\nrequests = 1', "begin_s"),
        (GOOD + 'half = "third"', "half"),
        (GOOD.replace("traces", "#") + 'half = "first"\n[sessions]\nkind = "deep-research"\nrequests = 1', "half"),
        (GOOD + "host_tokens = -1", "host_tokens"),
        (GOOD + "block_size = 0", "block_size"),
        (GOOD + '[sessions]\nkind = "deep-research"\nrequests = 10', "traces"),
        (GOOD.replace('traces = ["arena_adapters_vtc"]', ""), "traces"),
        (GOOD.replace("traces", "#") + ADAPTERS + '[sessions]\nkind = "deep-research"\nrequests = 1', "adapters"),
        (GOOD.replace("traces", "#") + '[sessions]\nkind = "deep-reserch"\nrequests = 1', "deep-research"),
        (GOOD.replace("traces", "#") + '[sessions]\nkind = "deep-research"\nrequests = 0', "sessions.requests"),
        (GOOD + ADAPTERS.replace("slots = 8", "slots = 0", 1), "adapters"),
        (GOOD + "[knowledge]\nrouters = 0", "knowledge.routers"),
        (GOOD + "[knowledge]\nmetrics_interval_ms = -5.0", "knowledge.metrics_interval_ms"),
        (GOOD + "[knowledge]\nkv_event_delay_ms = -5.0", "knowledge.kv_event_delay_ms"),
        (GOOD + "[pairs]\nprefill = 1", "pairs needs replicas of either role"),
        (GOOD + "[pairs]\nprefill = 2\ndecode = 1", "pairs needs 3 replicas, there are 2"),
        (GOOD + "[pairs]\nprefill = 1\ndecode = 1\ngigabytes_per_s = 0.0", "pairs.gigabytes_per_s"),
        (GOOD + "[pairs]\nprefill = 1\ndecode = 1\nsetup_ms = -1.0", "pairs.setup_ms"),
        ("about = ", "wrong"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=named):
        load_scenario(str(path))


def test_pairs_move_the_bytes_of_the_profile_s_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + "[pairs]\nprefill = 1\ndecode = 1\ngigabytes_per_s = 12.5")
    assert load_scenario(str(path)).handing_over == Pairs(1, 1, 131_072, 12.5e9, 0.02)
    path.write_text(GOOD)
    assert load_scenario(str(path)).handing_over is None


def test_a_scenario_that_is_not_there_is_told_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean w1_conversation"):
        load_scenario("w1_conversations")


def test_adapters_are_the_tenants_of_the_trace_or_drawn_by_zipf() -> None:
    named = load_scenario("w9").workload(0)
    drawn = load_scenario("w9b").workload(0)
    assert not isinstance(named, Users)
    assert not isinstance(drawn, Users)
    assert len(named.adapters) == 22
    counts = [sum(each.ask.adapter == f"adapter-{rank:04}" for each in drawn.arrivals) for rank in range(200)]
    assert sum(counts) == 8 * 713
    assert counts[0] > 1.5 * counts[1] > 2 * counts[5]
