from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.flags import parse
from loadtest.settings import CancelSettings, RunSettings


def test_flags_become_settings() -> None:
    line = "run --url http://h:1 --rate 2.5 --requests 9 --no-stream --endpoint completions --json a.json --quiet"
    assert parse(line.split()) == RunSettings(
        url="http://h:1",
        rate=2.5,
        requests=9,
        stream=False,
        endpoint="completions",
        json=Path("a.json"),
        quiet=True,
    )


def test_an_engine_url_may_be_given_again() -> None:
    line = "cancel --samples 3 --engine-url http://a:1 --engine-url http://b:2"
    assert parse(line.split()) == CancelSettings(samples=3, engine_url=("http://a:1", "http://b:2"))


def test_defaults_are_those_of_the_settings() -> None:
    assert parse(["cancel"]) == CancelSettings()
    assert parse(["run", "--rate", "1"]) == RunSettings(rate=1.0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "required: COMMAND"),
        ("rum", "COMMAND: invalid choice: 'rum'"),
        ("run --ratee 3", "--ratee: no such flag; did you mean --rate?"),
        ("run --concurency=3", "--concurency: no such flag; did you mean --concurrency?"),
        ("run --req 3", "--req: no such flag"),
        ("run --stream", "--stream: no such flag; did you mean --no-stream?"),
        ("run --zzzzzz 3", "--zzzzzz: no such flag"),
        ("run --rate 1 5", "'5': every value belongs to a flag"),
        ("run --rate", "--rate: expected one argument"),
        ("run --rate x", "--rate: 'x' is not a number"),
        ("run --rate inf", "--rate: 'inf' is not a number"),
        ("run --rate nan", "--rate: 'nan' is not a number"),
        ("run --concurrency 1.5", "--concurrency: '1.5' is not a whole number"),
        ("run --rate 1 --endpoint chats", "--endpoint: 'chats' is not one of chat, completions; did you mean chat?"),
        ("run --rate 0", "--rate: must be above 0"),
        ("cancel --samples 0", "--samples: must be at least 1"),
        ("cancel --engine-urls http://a", "--engine-urls: no such flag; did you mean --engine-url?"),
    ],
)
def test_a_wrong_line_is_one_sentence_that_names_the_flag(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["run", "cancel"])
def test_help_shows_every_flag_and_default(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse([command, "--help"])
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--url URL an OpenAI-compatible server, engine or router (default: http://127.0.0.1:30000)" in shown
    assert "--timeout-s X" in shown
    assert "None" not in shown
