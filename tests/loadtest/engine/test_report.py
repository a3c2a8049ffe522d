import json

import pytest

from loadtest.engine.comparison import rows_of
from loadtest.engine.report import print_json, print_table
from tests.loadtest.engine.test_comparison import contender, figures
from tests.loadtest.engine.test_engines import JOB

ROWS = rows_of({contender("transformers"): figures(10), contender("pointsman"): figures(20)})


def test_the_table_shows_speeds_answers_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, JOB)
    shown = capsys.readouterr().out
    assert "pointsman float32" in shown
    assert "2/2" in shown
    assert "batch 1: 2.00 times transformers" in shown


def test_json_has_the_same(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_json(ROWS, JOB)
    content = json.loads(capfdbinary.readouterr().out)
    assert content["rows"][1]["engine"] == "pointsman float32"
    assert content["ratios"][0] == {"what": "batch 1", "peer": "transformers", "ratio": 2.0}
