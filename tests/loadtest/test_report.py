import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.cancel import CancelSummary, PhaseResult
from loadtest.report import exit_code, print_cancels, print_table, write_json
from loadtest.settings import RunSettings
from loadtest.summary import FailureCount, Spread, Summary, Tokens

LATENCY = Spread(count=9, mean=0.2, p50=0.15, p90=0.3, p99=0.45, max=12.0)
SUMMARY = Summary(
    model="a-model",
    duration_s=4.0,
    num_requests=10,
    num_succeeded=9,
    num_failed=1,
    num_unfinished=0,
    failures=(FailureCount("HTTP 429", 1, "slow [down]"),),
    requests_per_s=2.25,
    input_tokens=Tokens(4000, 1000.0, "usage"),
    output_tokens=Tokens(90, 22.5, "counted chunks"),
    ttft_s=LATENCY,
    itl_s=None,
    tpot_s=LATENCY,
    e2e_s=LATENCY,
    cached_share=0.375,
    goodput_per_s=2.0,
    slo_share=0.8,
    requests_by_replica={"r1": 4, "r2": 5},
    lag_s=0.001,
    is_interrupted=False,
)


def shown(summary: Summary) -> str:
    page = io.StringIO()
    print_table(summary, Console(file=page, width=100))
    return page.getvalue()


def test_the_table_tells_everything() -> None:
    page = shown(SUMMARY)
    for words in (
        "a-model, 4.0 s",
        "9 succeeded, 1 failed",
        "1, first: slow [down]",
        "2.25",
        "1,000.0 (4,000 by usage)",
        "22.5 (90 by counted chunks)",
        "37.5 %",
        "2.00 requests/s, 80.0 % within the SLO",
        "r1: 4, r2: 5",
        "1.0 ms at most",
    ):
        assert words in page
    ttft = next(line for line in page.splitlines() if "TTFT" in line)
    assert ttft.replace("│", "").split() == ["TTFT", "200.0", "150.0", "300.0", "450.0", "12,000"]
    itl = next(line for line in page.splitlines() if "ITL" in line)
    assert itl.replace("│", "").split() == ["ITL", *"-----"]
    assert "Warning" not in page
    assert "Interrupted" not in page


def test_what_is_not_known_is_left_out_or_said() -> None:
    page = shown(replace(SUMMARY, cached_share=None, goodput_per_s=None, requests_by_replica={}))
    assert "not reported" in page
    assert "goodput" not in page
    assert "replicas" not in page


def test_a_slow_client_and_an_interrupt_are_told() -> None:
    page = shown(replace(SUMMARY, lag_s=0.0425, is_interrupted=True, num_unfinished=3))
    assert "Warning: this client was up to 42.5 ms late" in page
    assert "Interrupted; 3 requests in flight are not counted." in page


def test_json_holds_results_and_settings_without_the_key(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, SUMMARY, RunSettings(rate=3.0, api_key="secret", json=path))
    text = path.read_text()
    content = json.loads(text)
    assert "secret" not in text
    assert content["settings"]["rate"] == 3.0
    assert content["settings"]["json"] == str(path)
    assert content["results"]["ttft_s"]["p99"] == 0.45
    assert content["results"]["failures"] == [{"label": "HTTP 429", "count": 1, "example": "slow [down]"}]


@pytest.mark.parametrize(
    ("summary", "max_error_share", "code"),
    [
        (SUMMARY, 0.0, 1),
        (SUMMARY, 0.1, 0),
        (replace(SUMMARY, num_failed=0), 0.0, 0),
        (replace(SUMMARY, num_requests=0, num_failed=0), 1.0, 1),
        (replace(SUMMARY, is_interrupted=True), 1.0, 130),
    ],
)
def test_the_exit_code_follows_the_share_of_failures(summary: Summary, max_error_share: float, code: int) -> None:
    assert exit_code(summary, RunSettings(max_error_share=max_error_share)) == code


def test_cancels_are_shown_by_phase() -> None:
    page = io.StringIO()
    phases = (
        PhaseResult("before the first token", 0, LATENCY, None),
        PhaseResult("in mid-stream", 1, LATENCY, LATENCY),
    )
    print_cancels(CancelSummary("a-model", phases, LATENCY), Console(file=page, width=80))
    rows = [" ".join(line.replace("│", " ").split()) for line in page.getvalue().splitlines()]
    assert rows[rows.index("closed before the first token") :][1:6] == [
        "no request runs 9 150.0 300.0 450.0 12,000",
        "KV blocks are back 0 - - - -",
        "closed in mid-stream",
        "no request runs 9 150.0 300.0 450.0 12,000",
        "KV blocks are back 9 150.0 300.0 450.0 12,000",
    ]
    assert "every 150.0 ms" in page.getvalue()
