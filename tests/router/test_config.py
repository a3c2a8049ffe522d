import argparse
import ast
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import config
from router.config import ConfigError, Settings

LAYERS = ("default", "file", "environment", "flag")


def load(
    tmp_path: Path, flags: list[str] | None = None, environment: dict[str, str] | None = None, toml: str | None = None
) -> Settings:
    """Settings as the command loads them."""
    parser = argparse.ArgumentParser()
    config.add_flags(parser)
    file = tmp_path / "pointsman.toml"
    if toml is not None:
        file.write_text(toml)
    return config.load(
        config.given(vars(parser.parse_args(flags or []))), environment or {}, str(file) if toml is not None else None
    )


# setting: (what the file says, what the environment says, what the flag says, the four values)
KINDS: dict[str, tuple[str, str, list[str], tuple[object, ...]]] = {
    "port": ("1", "2", ["--port", "3"], (30000, 1, 2, 3)),
    "queue_timeout_s": ("1.5", "2.5", ["--queue-timeout-s=3.5"], (60.0, 1.5, 2.5, 3.5)),
    "policy": (
        '"random"',
        "round-robin",
        ["--policy", "least-request"],
        ("pointsman", "random", "round-robin", "least-request"),
    ),
    "forward_authorization": ("true", "false", ["--forward-authorization"], (False, True, False, True)),
    "replica": (
        '["http://f", {url = "http://g", tokenizer = "t"}]',
        "http://e http://e2,tokenizer=t",
        ["--replica", "http://a", "--replica", "http://b"],
        ((), ("http://f", "http://g,tokenizer=t"), ("http://e", "http://e2,tokenizer=t"), ("http://a", "http://b")),
    ),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("top", range(4), ids=LAYERS)
def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path, name: str, top: int) -> None:
    in_file, in_environment, flag, values = KINDS[name]
    wanted: dict[str, Any] = {name: values[top]}
    settings = load(
        tmp_path,
        flags=flag if top >= 3 else [],
        environment={f"POINTSMAN_{name.upper()}": in_environment} if top >= 2 else {},
        toml=f"{name} = {in_file}\n" if top >= 1 else None,
    )
    assert settings == replace(Settings(), **wanted)


def test_an_outside_providers_models_are_a_list_in_a_file(tmp_path: Path) -> None:
    toml = 'replica = [{url = "https://a/v1", api_key = "k", models = ["one", "org/two"]}]'
    assert load(tmp_path, toml=toml).replica == ("https://a/v1,api_key=k,models=one+org/two",)


def test_a_switch_can_be_flagged_off(tmp_path: Path) -> None:
    toml = "forward_authorization = true"
    assert not load(tmp_path, ["--no-forward-authorization"], toml=toml).forward_authorization


@pytest.mark.parametrize("word", ["true", "True", "1", "yes", "false", "0", "no", "NO"])
def test_a_switch_in_the_environment_is_a_word(tmp_path: Path, word: str) -> None:
    is_on = word.lower() in ("true", "1", "yes")
    assert load(tmp_path, environment={"POINTSMAN_FORWARD_AUTHORIZATION": word}).forward_authorization is is_on


def failure(tmp_path: Path, **layers: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **layers)
    return str(caught.value)


def test_an_unknown_key_of_the_file_suggests_the_nearest(tmp_path: Path) -> None:
    message = failure(tmp_path, toml="quue_timeout_s = 3")
    assert (
        message
        == f"Unknown setting `quue_timeout_s` in the file {tmp_path}/pointsman.toml; did you mean `queue_timeout_s`?"
    )


def test_an_unknown_variable_suggests_the_nearest(tmp_path: Path) -> None:
    message = failure(tmp_path, environment={"POINTSMAN_PORTT": "3"})
    assert message == "Unknown setting `portt` in the environment; did you mean `port`?"


def test_an_unknown_key_that_is_near_to_nothing_suggests_nothing(tmp_path: Path) -> None:
    assert failure(tmp_path, toml="zzz = 3").endswith("pointsman.toml")


WRONG = [
    ("port", '"x"', "x", "a whole number"),
    ("port", "3.5", "3.5", "a whole number"),
    ("port", "true", "true", "a whole number"),
    ("queue_timeout_s", '"soon"', "soon", "a number"),
    ("queue_timeout_s", "[1]", "", "a number"),
    ("forward_authorization", '"maybe"', "maybe", "true or false"),
    ("forward_authorization", "1", "2", "true or false"),
]


@pytest.mark.parametrize(("name", "in_file", "in_environment", "wanted"), WRONG)
def test_a_wrong_type_names_the_setting_and_its_source(
    tmp_path: Path, name: str, in_file: str, in_environment: str, wanted: str
) -> None:
    message = failure(tmp_path, toml=f"{name} = {in_file}")
    assert message.startswith(f"The setting `{name}` in the file {tmp_path}/pointsman.toml must be {wanted}, not ")
    message = failure(tmp_path, environment={f"POINTSMAN_{name.upper()}": in_environment})
    assert message == f"The setting `{name}` in the environment must be {wanted}, not {in_environment!r}."


def test_a_wrong_flag_value_names_the_setting(tmp_path: Path) -> None:
    assert failure(tmp_path, flags=["--port", "x"]) == "The setting `port` in a flag must be a whole number, not 'x'."


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("policy = 3", "`policy` in the file"),
        ("host = []", "`host` in the file"),
        ('replica = "http://a"', "a list of replicas"),
        ("replica = [3]", "a list of replicas"),
        ("[port]\nx = 1", "`port` in the file"),
    ],
)
def test_a_wrong_type_in_the_file_is_named(tmp_path: Path, toml: str, words: str) -> None:
    assert words in failure(tmp_path, toml=toml)


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "-inf"])
@pytest.mark.parametrize("name", [spec.name for spec in fields(Settings) if spec.type in (int, float)])
def test_a_number_is_finite_and_from_zero(tmp_path: Path, name: str, value: str) -> None:
    assert f"The setting `{name}`" in failure(tmp_path, environment={f"POINTSMAN_{name.upper()}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"),
        ("admin_port", "70000"),
        ("max_in_flight", "0"),
        ("max_open_requests", "0"),
        ("max_body_bytes", "0"),
        ("max_attempts", "0"),
        ("log_level", "loud"),
    ],
)
def test_a_value_out_of_range_is_named(tmp_path: Path, name: str, value: str) -> None:
    assert f"The setting `{name}` must be" in failure(tmp_path, environment={f"POINTSMAN_{name.upper()}": value})


def test_a_file_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^The config file /nowhere/x.toml cannot be read: No such file"):
        config.load({}, {}, "/nowhere/x.toml")


@pytest.mark.parametrize("content", [b"port = ", b"port = 1\nport = 2", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.toml is not valid TOML: "):
        config.load({}, {}, str(file))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("POINTSMAN_SERVICE_HOST", "10.0.0.1"),
        ("POINTSMAN_SERVICE_PORT", "30000"),
        ("POINTSMAN_SERVICE_PORT_HTTP", "30000"),
        ("POINTSMAN_PORT", "tcp://10.0.0.1:30000"),
        ("POINTSMAN_PORT_30000_TCP", "tcp://10.0.0.1:30000"),
        ("POINTSMAN_PORT_30000_TCP_ADDR", "10.0.0.1"),
        ("POINTSMAN_PORT_30000_TCP_PROTO", "tcp"),
        ("POINTSMAN_ADMIN_SERVICE_HOST", "10.0.0.1"),
        ("POINTSMAN_ADMIN_SERVICE_PORT", "30002"),
        ("POINTSMAN_ADMIN_PORT", "tcp://10.0.0.1:30002"),
        ("POINTSMAN_ENGINE_PORT", "tcp://10.0.0.1:8000"),
        ("POINTSMAN_ENGINE_PORT_8000_TCP_PORT", "8000"),
    ],
)
def test_kubernetes_service_links_are_not_ours(tmp_path: Path, key: str, value: str) -> None:
    assert load(tmp_path, environment={key: value}) == Settings()


def test_a_port_in_the_environment_is_ours_where_it_is_a_number(tmp_path: Path) -> None:
    settings = load(tmp_path, environment={"POINTSMAN_PORT": "1", "POINTSMAN_ADMIN_PORT": "2"})
    assert (settings.port, settings.admin_port) == (1, 2)
    assert "`engine_port`" in failure(tmp_path, environment={"POINTSMAN_ENGINE_PORT": "8000"})


def test_other_variables_are_not_read(tmp_path: Path) -> None:
    assert load(tmp_path, environment={"PORT": "1", "POINTSMANPORT": "1", "pointsman_port": "1"}) == Settings()


def test_flags_that_are_no_settings_are_left_out() -> None:
    assert config.given({"port": "1", "host": None, "model": "m"}) == {"port": "1"}


def test_a_command_may_leave_settings_out() -> None:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, without=("replica",))
    assert "--replica" not in parser.format_help()
    assert "--port" in parser.format_help()


def test_the_reference_round_trips() -> None:
    assert config.load(tomllib.loads(config.reference()), {}, None) == Settings()


@given(st.text(), st.lists(st.text(), max_size=3), st.integers(0, 65535), st.booleans(), st.floats(0, 1e300))
def test_any_settings_round_trip(text: str, replicas: list[str], port: int, is_on: bool, seconds: float) -> None:
    settings = Settings(
        policy=text, replica=tuple(replicas), port=port, forward_authorization=is_on, queue_timeout_s=seconds
    )
    assert config.load(tomllib.loads(config.reference(settings)), {}, None) == settings


def test_every_setting_has_help_and_a_unit_where_its_name_has_one() -> None:
    units = {"_s": "seconds", "_bytes": "bytes"}
    for spec in fields(Settings):
        assert len(spec.metadata["help"]) > 10, spec.name
        named = [unit for ending, unit in units.items() if spec.name.endswith(ending)]
        assert [spec.metadata["unit"]] == (named or [""]), spec.name
        assert f"{spec.name} = " in config.reference()


def test_every_setting_is_a_flag_with_its_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # no line breaks in a help
    parser = argparse.ArgumentParser()
    config.add_flags(parser)
    words = " ".join(parser.format_help().split())
    for spec in fields(Settings):
        assert f"--{spec.name.replace('_', '-')} " in words
        assert spec.metadata["help"].split("[")[0] in words


def test_every_setting_is_read_somewhere() -> None:
    read = {
        node.attr
        for path in Path("router").rglob("*.py")
        if path.name != "config.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_settings(node.value)
    }
    assert {spec.name for spec in fields(Settings)} - read == set()


def _is_settings(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "settings") or (
        isinstance(node, ast.Attribute) and node.attr == "settings"
    )


@pytest.mark.parametrize(
    ("name", "hint"), [("prot", "; did you mean `port`?"), ("port", "; did you mean `port`?"), ("zzzz", "")]
)
def test_the_nearest_name_is_suggested(name: str, hint: str) -> None:
    assert config.nearest(name, ["host", "port", "policy"]) == hint


@pytest.mark.parametrize(("number", "said"), [("0", "at least 1"), ("65", "at most 64")])
def test_the_number_of_workers_has_bounds(tmp_path: Path, number: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"`workers` must be {said}"):
        load(tmp_path, ["--workers", number])


def test_the_key_of_commands_is_no_setting() -> None:
    environment = {"POINTSMAN_API_KEY": "sk-pm-x", "POINTSMAN_PORT": "7"}
    assert config.load({}, environment, None).port == 7
    assert config.credentials(environment) == {"authorization": "Bearer sk-pm-x"}
    assert config.credentials({}) == {}
