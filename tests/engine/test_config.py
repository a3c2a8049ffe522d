from dataclasses import fields

import pytest

from engine.config import EngineConfig, parse


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a wrong command line gives."""
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_unset_flags_have_the_defaults_of_the_settings() -> None:
    assert parse(["--model", "m"]) == EngineConfig(model="m")


def test_each_setting_is_a_flag_of_its_own_type() -> None:
    given = EngineConfig(
        model="m",
        served_model_name="name",
        host="0.0.0.0",
        port=1,
        device="cpu",
        dtype="bfloat16",
        threads=2,
        max_num_seqs=3,
        max_num_batched_tokens=4,
        max_model_len=5,
        kv_cache_gib=0.25,
        host_kv_gib=0.125,
        kv_events_config="{}",
        kv_transfer_port=6,
        grpc_port=7,
        lora=("blue=/adapters/blue",),
        max_loras=8,
        max_cpu_loras=16,
        max_lora_rank=9,
        chat_template="t.jinja",
        tool_call_format="llama3",
        prompt_lookup_tokens=4,
        pooling="mean",
        exit_with_parent=True,
        log_level="error",
    )
    flags = []
    for setting in fields(EngineConfig):
        flags.append(f"--{setting.name.replace('_', '-')}")
        value = getattr(given, setting.name)
        if setting.type is not bool:
            flags.append(value[0] if isinstance(value, tuple) else str(value))
    assert parse(flags) == given


def test_adapters_are_named_one_by_one() -> None:
    assert parse(["--model", "m", "--lora", "a=/a", "--lora", "b=/b=c"]).lora == ("a=/a", "b=/b=c")


def test_the_help_explains_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for setting in fields(EngineConfig):
        assert " ".join(setting.metadata["help"].split()) in shown


def test_a_misspelt_flag_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown flag --modle; did you mean --model?" in refused(capsys, "--modle", "m")
    assert "unknown flag --zzz, see --help" in refused(capsys, "--model", "m", "--zzz=1")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--port", "99999"], "--port must be 0 to 65535"),
        (["--port", "x"], "argument --port: invalid int value"),
        (["--dtype", "int8"], "argument --dtype: invalid choice"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--max-model-len", "-1"], "--max-model-len must be at least 1"),
        (["--kv-cache-gib", "0"], "--kv-cache-gib must be above 0"),
        (["--kv-cache-gib", "nan"], "--kv-cache-gib must be above 0"),
        (["--lora", "blue"], "--lora must be NAME=PATH, not 'blue'"),
        (["--lora", "=/blue"], "--lora must be NAME=PATH"),
        (["--lora", "a=/a", "--max-loras", "0"], "--max-loras must be at least 1"),
        (["--max-cpu-loras", "3"], "--max-cpu-loras must be at least 4, for --max-loras and each --lora, not 3"),
        (["--max-lora-rank", "0"], "--max-lora-rank must be at least 1"),
        (["--grpc-port", "-1"], "--grpc-port must be 0 to 65535"),
        (["--host-kv-gib", "-1"], "--host-kv-gib must be 0 or more"),
        (["--max-num-seqs", "600"], "--max-num-batched-tokens (256) must be at least --max-num-seqs (600)"),
    ],
)
def test_a_senseless_value_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
) -> None:
    assert complaint in refused(capsys, "--model", "m", *flags)


def test_the_model_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model" in refused(capsys)
