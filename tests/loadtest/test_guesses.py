"""Prompt lookup measured: on a whole small engine, by two processes."""

from pathlib import Path

import pytest

from loadtest import guesses
from tests.engine.server.tiny_service import write_tiny_model


@pytest.mark.slow
def test_both_engines_answer_alike_and_their_costs_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guesses, "TEXTS", {"letters": "abcabcabc" * 5})
    model = write_tiny_model(tmp_path / "tiny.gguf")
    assert guesses.main(["--model", str(model), "--rounds", "1"]) == 0
    assert "letters" in capsys.readouterr().out


@pytest.mark.slow
def test_an_engine_that_does_not_start_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guesses.main(["--model", str(tmp_path / "nothing.gguf")]) == 1
    assert "the engine does not start" in capsys.readouterr().err
