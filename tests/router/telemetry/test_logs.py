import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from router.telemetry.logs import LOGGER, JsonLines, open_log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    was = (logger.handlers[:], logger.propagate, logger.level)
    yield
    logger.handlers[:], logger.propagate = was[0], was[1]
    logger.setLevel(was[2])


def record(message: str = "request", **extra: object) -> logging.LogRecord:
    made = logging.LogRecord(LOGGER, logging.INFO, __file__, 1, message, (), None)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def line(made: logging.LogRecord) -> dict[str, Any]:
    text = JsonLines().format(made)
    assert "\n" not in text
    decoded: dict[str, Any] = json.loads(text)
    return decoded


def test_a_line_has_time_level_and_message() -> None:
    assert line(record()) == {"time": "2023-11-14T22:13:20.250Z", "level": "info", "message": "request"}


def test_fields_stand_beside_them() -> None:
    assert line(record(fields={"status": 200, "model": "m"})) == {
        **line(record()),
        "status": 200,
        "model": "m",
    }


def test_line_breaks_and_odd_characters_stay_in_one_line() -> None:
    assert line(record("a\nb \u2028 é \x00", fields={"error": "x\r\ny"}))["error"] == "x\r\ny"


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("of ours")
    except ValueError:
        made = record()
        made.exc_info = sys.exc_info()
    assert "ValueError: of ours" in line(made)["exception"]


def test_the_log_writes_its_level_and_above_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = open_log("warning")
    logger.info("unheard")
    logger.warning("heard", extra={"fields": {"n": 1}})
    lines = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert [(it["level"], it["message"], it["n"]) for it in lines] == [("warning", "heard", 1)]


def test_opening_again_replaces_the_old_log(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    open_log("info")
    open_log("info").info("once")
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_every_level_of_the_settings_is_known(level: str) -> None:
    assert open_log(level).level == getattr(logging, level.upper())
