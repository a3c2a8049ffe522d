"""Results on disk: found again by what they depend on, and by nothing else."""

from pathlib import Path

import msgspec
import pytest

from loadtest.simulator.cache import ResultCache, code_key, code_of, default_folder, file_key


class Result(msgspec.Struct, frozen=True):
    value: int


class Counter:
    def __init__(self) -> None:
        self.num_computed = 0

    def compute(self) -> Result:
        self.num_computed += 1
        return Result(self.num_computed)


def test_a_result_is_computed_once_for_its_parameters(tmp_path: Path) -> None:
    counter, cache = Counter(), ResultCache(tmp_path / "new" / "folder")
    assert [cache.get(Result, ["a", 1.5], counter.compute) for _ in range(3)] == [Result(1)] * 3
    assert cache.get(Result, ["a", 1.6], counter.compute) == Result(2)
    assert ResultCache(tmp_path / "new" / "folder").get(Result, ["a", 1.5], counter.compute) == Result(1)


def test_what_cannot_be_read_is_computed_again(tmp_path: Path) -> None:
    counter, cache = Counter(), ResultCache(tmp_path)
    cache.get(Result, [], counter.compute)
    (path,) = tmp_path.iterdir()
    path.write_text("{")
    assert cache.get(Result, [], counter.compute) == Result(2)
    assert cache.get(Result, [], counter.compute) == Result(2)


def test_without_a_folder_nothing_is_kept() -> None:
    counter, cache = Counter(), ResultCache(None)
    assert [cache.get(Result, [], counter.compute).value for _ in range(2)] == [1, 2]


def test_keys_follow_what_files_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    other.write_text("b")
    before = file_key([one, other])
    assert file_key([one, other]) == before
    other.write_text("c")
    assert file_key([one, other]) != before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "pointsman" / "simulator"


def test_a_policys_results_hang_on_what_simulates_it_and_on_no_other_policy() -> None:
    ours, dynamo, every = code_of("pointsman"), code_of("dynamo"), code_of(None)
    needed = {"engine/scheduler.py", "router/placement.py", "router/replicas/speeds.py", "router/routing/pickers.py"}
    assert needed | {"proto/pointsman/blockhash.py", "loadtest/traces/engine_profiles.json"} <= ours & dynamo
    assert {"router/routing/cost.py", "router/routing/pointsman.py"} == ours - dynamo
    assert "router/routing/published/dynamo.py" in dynamo - ours
    assert every == ours | dynamo
    assert not {"router/app.py", "router/proxy.py", "loadtest/simulator/report.py"} & every
    assert len({code_key(policy) for policy in ("pointsman", "dynamo", None)}) == 3


def test_what_only_fleets_with_roles_need_is_of_no_weight_for_others() -> None:
    alone, paired = code_of("dynamo"), code_of("dynamo", is_paired=True)
    assert {"router/handover.py", "router/routing/splitting.py", "router/routing/cost.py"} <= paired - alone
    assert alone < paired


def test_policies_have_results_of_their_own(tmp_path: Path) -> None:
    counter, cache = Counter(), ResultCache(tmp_path)
    results = [cache.get(Result, [], counter.compute, policy) for policy in ("dynamo", "lmetric", "dynamo")]
    assert [result.value for result in results] == [1, 2, 1]
