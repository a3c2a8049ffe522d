import pytest

from loadtest import engine_steps, micro


def test_the_steps_of_each_batch_size_are_measured_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_steps, "BATCHES", (1, 3))
    monkeypatch.setattr(engine_steps, "NUM_STEPS", 20)
    costs = engine_steps.measure_engine(1)
    assert list(costs) == [1, 3]
    assert all(cost.core_us > 0 for cost in costs.values())
    assert micro.main(["engine", "--rounds", "1"]) == 0
    assert "microseconds a step, no model" in capsys.readouterr().out
