import pytest

from loadtest.errors import UsageError
from loadtest.settings import CancelSettings, RunSettings, about, check_cancel, check_run


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--rate or --concurrency"),
        ({"rate": 1.0, "concurrency": 1}, "--rate and --concurrency"),
        ({"rate": 0.0}, "--rate: must be above 0, not 0"),
        ({"concurrency": 0}, "--concurrency: must be at least 1, not 0"),
        ({"rate": 1.0, "requests": 0}, "--requests: must be at least 1"),
        ({"rate": 1.0, "prefix_share": 1.5}, "--prefix-share: must be at most 1, not 1.5"),
        ({"rate": 1.0, "max_error_share": -0.1}, "--max-error-share: must be at least 0"),
        ({"rate": 1.0, "timeout_s": -1.0}, "--timeout-s: must be above 0"),
        ({"rate": 1.0, "url": "localhost:30000"}, "--url: 'localhost:30000' is not an address"),
        ({"rate": 1.0, "url": "http://"}, "--url: "),
        ({"rate": 1.0, "url": "http://host:port"}, "--url: "),
        ({"rate": 1.0, "speedup": 2.0}, "--speedup: needs --trace"),
        ({"rate": 1.0, "shrink": 2.0}, "--shrink: needs --trace"),
        ({"trace": "x", "turns": 2}, "--turns: contradicts --trace"),
        ({"trace": "x", "input_tokens": 2}, "--input-tokens: contradicts --trace"),
        ({"trace": "x", "rate": 1.0, "speedup": 2.0}, "--speedup: has no effect"),
        ({"rate": 1.0, "stream": False, "slo_ttft_ms": 5.0}, "--slo-ttft-ms: needs a stream"),
    ],
)
def test_a_wrong_setting_is_told_by_its_flag(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_run(RunSettings(**given), given.keys())  # type: ignore[arg-type]
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "given",
    [
        {"rate": 1.0},
        {"concurrency": 1, "prefix_share": 1.0, "url": "https://host/v1"},
        {"trace": "x", "speedup": 0.5, "shrink": 3.0},
        {"trace": "x", "concurrency": 5},
        {"trace": "x", "rate": 5.0},
    ],
)
def test_a_right_setting_passes(given: dict[str, object]) -> None:
    check_run(RunSettings(**given), given.keys())  # type: ignore[arg-type]


def test_engine_urls_are_checked() -> None:
    check_cancel(CancelSettings(engine_url=("http://a:1", "http://b:2")))
    with pytest.raises(UsageError, match="--engine-url: 'b:2'"):
        check_cancel(CancelSettings(engine_url=("http://a:1", "b:2")))


@pytest.mark.parametrize(
    ("settings", "num_rows", "planned"),
    [
        (RunSettings(), None, 100),
        (RunSettings(requests=7), None, 7),
        (RunSettings(duration_s=1.0), None, None),
        (RunSettings(duration_s=1.0, requests=7), None, 7),
        (RunSettings(), 50, 50),
        (RunSettings(requests=7), 50, 7),
        (RunSettings(requests=70), 50, 50),
    ],
)
def test_the_number_of_requests_is_known_where_it_can_be(
    settings: RunSettings, num_rows: int | None, planned: int | None
) -> None:
    assert settings.num_planned(num_rows) == planned


@pytest.mark.parametrize("kind", [RunSettings, CancelSettings])
def test_every_setting_has_a_line_of_help(kind: type[RunSettings | CancelSettings]) -> None:
    assert all(told.text and len(told.text) < 90 for _, _, _, told in about(kind))
