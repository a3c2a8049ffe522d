import logging
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from router import cli, config
from router.config import Settings
from router.telemetry.logs import LOGGER

COMMANDS = ["up", "serve", "check", "replicas", "drain", "keys", "tenants", "chat"]


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, status: object, out: str, err: str) -> None:
        # A text as exit status is what Python prints on standard error, with status 1.
        self.status = 1 if isinstance(status, str) else status
        self.out = out
        self.err = err + (status if isinstance(status, str) else "")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "120")
    handlers = logging.getLogger(LOGGER).handlers
    was = handlers[:]
    yield
    handlers[:] = was


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> "Run":
    return Run(capsys)


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        return Ended(ended.value.code, *self._capsys.readouterr())


def test_help_lists_every_command_with_what_it_does(run: Run) -> None:
    ended = run("--help")
    assert (ended.status, ended.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in ended.out.splitlines()]
    said = {words[0]: words[1] for words in lines if len(words) == 2}
    for name in [*COMMANDS, "engine"]:
        assert len(said[name]) > 20, name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_says_what_it_does_and_explains_each_flag(run: Run, command: str) -> None:
    ended = run(command, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"usage: pointsman {command} ")
    assert cli._COMMANDS[command][1].split(",")[0] in ended.out
    assert "None" not in ended.out
    options = ended.out.split("options:\n")[1]
    flags = [line for line in options.splitlines() if line.startswith("  -")]
    lines = options.splitlines()
    for line in flags:
        is_explained = "  " in line.strip() or lines[lines.index(line) + 1].startswith(" " * 10)
        assert is_explained, line


def test_help_of_serve_has_every_setting_with_unit_and_default(run: Run) -> None:
    words = " ".join(run("serve", "--help").out.split())
    assert "--queue-timeout-s S wait for a replica, in seconds (default 60.0)" in words
    assert "--replica URL an engine replica: URL[,tokenizer=PATH][,api_key=KEY]" in words
    assert "--forward-authorization, --no-forward-authorization" in words
    assert "--config FILE" in words


def test_up_takes_no_replicas_of_others(run: Run) -> None:
    assert "--replica URL" not in run("up", "--help").out
    assert "--replicas N" in run("up", "--help").out


def test_version_is_the_packages(run: Run) -> None:
    assert run("--version").out == "pointsman 0.1.0\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["sevre"], "serve"),
        (["replica"], "replicas"),
        (["serve", "--prot", "3"], "--port"),
        (["serve", "--queue-timeout=3"], "--queue-timeout-s"),
        (["serve", "--replicas", "http://a"], "--replica"),
        (["up", "--replica", "2"], "--replicas"),
        (["chat", "--modle", "m", "hello"], "--model"),
        (["replicas", "--jsno"], "--json"),
        (["drain", "a:1", "--undp"], "--undo"),
    ],
)
def test_a_wrong_word_suggests_the_nearest(run: Run, words: list[str], hint: str) -> None:
    ended = run(*words)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.endswith(f"; did you mean {hint}?\n")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("words", [["zzzzzz"], ["serve", "--zzzzzzzz"], ["--zzzz", "serve"], ["--zzzz", "engine"]])
def test_a_word_that_is_near_to_nothing_suggests_nothing(run: Run, words: list[str]) -> None:
    ended = run(*words)
    assert ended.status == 2
    assert "did you mean" not in ended.err
    assert "zzzz" in ended.err


@pytest.mark.parametrize("words", [[], ["drain"], ["chat", "--max-tokens", "many"], ["serve", "--config"]])
def test_wrong_usage_is_one_line_and_status_2(run: Run, words: list[str]) -> None:
    ended = run(*words)
    assert ended.status == 2
    assert len(ended.err.splitlines()) == 1


def test_flags_are_not_abbreviated(run: Run) -> None:
    assert run("serve", "--queue", "3").status == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["serve"], "There is no replica to serve; name one with --replica http://HOST:PORT."),
        (["serve", "--port", "x"], "The setting `port` in a flag must be a whole number, not 'x'."),
        (["serve", "--port", "70000"], "The setting `port` must be at most 65535."),
        (["serve", "--config", "/nowhere.toml"], "The config file /nowhere.toml cannot be read"),
        (["check", "--replica", "a:1"], "The setting `replica` is wrong: "),
        (["check", "--replica", "http://a,tokeniser=x"], "The setting `replica` is wrong: "),
        (["check", "--policy", "ronud-robin"], "round-robin"),
        (["check", "--policy", "none.toml"], "The setting `policy` is wrong: cannot read the recipe none.toml"),
        (["policies", "ronud-robin"], "round-robin"),
        (["up", "--replicas", "0"], "The flag `--replicas` must be at least 1."),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_status_1(run: Run, words: list[str], sentence: str) -> None:
    ended = run(*words)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("pointsman: ")
    assert sentence in ended.err
    assert len(ended.err.splitlines()) == 1


def test_check_prints_what_is_in_force_as_toml(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pointsman.toml"
    file.write_text('replica = ["http://a:1"]\nqueue_timeout_s = 5\n')
    monkeypatch.setenv("POINTSMAN_POLICY", "random")
    ended = run("check", "--config", str(file), "--port", "4000")
    assert (ended.status, ended.err) == (0, "")
    shown = config.load(tomllib.loads(ended.out), {}, None)
    assert shown == Settings(replica=("http://a:1",), queue_timeout_s=5.0, policy="random", port=4000)


def test_check_of_nothing_prints_the_defaults(run: Run) -> None:
    assert run("check").out == config.reference()


def test_the_engine_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flags are its own: they are handed over unread."""

    class Replaced(Exception):
        pass

    executed: list[list[str]] = []

    def execv(path: str, arguments: list[str]) -> None:
        executed.append([path, *arguments])
        raise Replaced

    monkeypatch.setattr("os.execv", execv)
    with pytest.raises(Replaced):
        cli.main(["engine", "--model", "x", "--help"])
    assert executed == [[sys.executable, sys.executable, "-m", "engine", "--model", "x", "--help"]]


def test_ctrl_c_is_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("router.config.load", interrupted)
    assert run("check").status == 130


def test_the_module_is_the_command() -> None:
    ended = subprocess.run([sys.executable, "-m", "router", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout == "pointsman 0.1.0\n"
