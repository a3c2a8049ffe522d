import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.picture import draw
from loadtest.sample import Failure, Fault, Measured, Sample
from loadtest.settings import RunSettings
from loadtest.summary import summarise

GOOD = Sample(
    sent_s=0.0,
    ended_s=2.0,
    failure=None,
    first_token_s=0.5,
    gaps_s=(0.0, 0.3),
    num_chunks=3,
    num_sent_words=10,
    num_input_tokens=12,
    num_output_tokens=4,
    num_cached_tokens=3,
    replica="r1",
)


@pytest.mark.parametrize(
    "samples",
    [
        (),
        (GOOD,),
        (replace(GOOD, first_token_s=None, gaps_s=()),),
        tuple(replace(GOOD, ended_s=number / 100, first_token_s=number / 200) for number in range(1, 400)),
        (GOOD, replace(GOOD, failure=Failure(Fault.CUT, "no [DONE]"), ended_s=4.0)),
    ],
)
def test_any_run_can_be_drawn(tmp_path: Path, samples: tuple[Sample, ...]) -> None:
    measured = Measured("m", samples, 0.0, 4.0, num_unfinished=0, lag_s=0.0, is_interrupted=False)
    path = tmp_path / "out.png"
    draw(path, measured, summarise(measured, RunSettings()))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "loadtest.picture")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="--png: needs matplotlib"):
        importlib.import_module("loadtest.picture")
