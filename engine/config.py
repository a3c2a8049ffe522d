"""Every setting of the engine, once: default, unit and one line of help. The flags are derived from it.

Knows what may be asked for. Must not know how it is done.
"""

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, NoReturn

BLOCK_SIZE = 16
"""Tokens in a KV block. Routers hash prompts by it, so it is part of what a replica tells about itself."""


def _setting(
    help: str, *, default: Any = MISSING, unit: str | None = None, choices: tuple[str, ...] | None = None
) -> Any:
    metadata = {"help": help, "unit": unit, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Raises ValueError naming the flag when a value makes no sense."""

    model: str = _setting("a .gguf file, a folder with config.json and safetensors, or smollm2-135m-instruct")
    served_model_name: str | None = _setting("model id to serve; if unset, the file's or folder's", default=None)
    host: str = _setting("address to listen on", default="127.0.0.1")
    port: int = _setting("port to listen on; 0 takes a free one", default=8000)
    device: str = _setting("where to compute; auto is cuda if there is one", default="auto")
    dtype: str = _setting(
        "number format of weights and KV; auto is float32 on cpu, else bfloat16",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantized: str = _setting(
        "what becomes of weights that a .gguf stores in 4 or 8 bits: kept on a cpu, kept for small batches beside "
        "widened ones, or widened; auto keeps them in float32 where there is a C compiler and AVX-512 VNNI",
        default="auto",
        choices=("auto", "keep", "small", "widen"),
    )
    threads: int | None = _setting("threads that compute on the cpu; if unset, one a core", default=None)
    max_num_seqs: int = _setting("requests computed in one step, at most", default=32)
    max_num_batched_tokens: int = _setting(
        "budget of a step, which others, and a cancel, may have to wait for", default=256, unit="tokens"
    )
    max_model_len: int | None = _setting(
        "longest context; if unset, the model's or what the KV cache holds", default=None, unit="tokens"
    )
    kv_cache_gib: float = _setting("memory for KV blocks", default=0.5, unit="GiB")
    host_kv_gib: float = _setting(
        "host memory for KV blocks that the cache has no room for; 0 is none", default=0.0, unit="GiB"
    )
    kv_events_config: str | None = _setting(
        "KV events over ZMQ, as vLLM is told of them in JSON: enable_kv_cache_events, endpoint, replay_endpoint, ...",
        default=None,
        unit="json",
    )
    kv_transfer_port: int | None = _setting(
        "port, at --host, where other engines fetch the KV of prompts that were computed for them; 0 takes a free one",
        default=None,
    )
    grpc_port: int | None = _setting("port of gRPC (engine.proto), at --host; 0 takes a free one", default=None)
    lora: tuple[str, ...] = _setting(
        "a LoRA adapter to load, a folder as PEFT saves it; may be given again", default=(), unit="name=path"
    )
    max_loras: int = _setting("adapters that one step may compute with; 0 is none", default=4)
    max_cpu_loras: int | None = _setting(
        "adapters in host memory, of which the least recently used leaves for a new one, but none of --lora; if unset, "
        "any number",
        default=None,
    )
    max_lora_rank: int = _setting("largest rank of an adapter", default=64)
    chat_template: str | None = _setting("a file with the chat template; if unset, the model's own", default=None)
    tool_call_format: str = _setting(
        "how the model writes tool calls; auto is what its chat template tells",
        default="auto",
        choices=("auto", "hermes", "llama3"),
    )
    prompt_lookup_tokens: int = _setting(
        "tokens that a request guesses in a step, from what followed the same words before; 0 guesses none",
        default=0,
        unit="tokens",
    )
    pooling: str = _setting(
        "how /v1/embeddings makes one vector of hidden states; auto is what the model's folder tells, else last",
        default="auto",
        choices=("auto", "mean", "last"),
    )
    exit_with_parent: bool = _setting("stop when standard input closes", default=False)
    log_level: str = _setting(
        "least level that is logged", default="info", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{_flag(name)} must be at least 1, not {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least --max-num-seqs "
                f"({self.max_num_seqs})"
            )
        if self.prompt_lookup_tokens < 0:
            raise ValueError(f"--prompt-lookup-tokens must be 0 or more, not {self.prompt_lookup_tokens}")
        if not 0 < self.kv_cache_gib < float("inf"):
            raise ValueError(f"--kv-cache-gib must be above 0, not {self.kv_cache_gib}")
        for entry in self.lora:
            if not all(entry.partition("=")):
                raise ValueError(f"--lora must be NAME=PATH, not {entry!r}")
        least_loaded = max(self.max_loras, len(self.lora))
        if self.max_cpu_loras is not None and self.max_cpu_loras < least_loaded:
            raise ValueError(
                f"--max-cpu-loras must be at least {least_loaded}, for --max-loras and each --lora, not "
                f"{self.max_cpu_loras}"
            )
        for name, least in (("max_loras", 1 if self.lora else 0), ("max_lora_rank", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{_flag(name)} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.host_kv_gib < float("inf"):
            raise ValueError(f"--host-kv-gib must be 0 or more, not {self.host_kv_gib}")
        for name in ("port", "grpc_port", "kv_transfer_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise ValueError(f"{_flag(name)} must be 0 to 65535, not {port}")


def parse(arguments: Sequence[str]) -> EngineConfig:
    """Exits with status 2 and one sentence for a wrong flag, naming the nearest one."""
    parser = _Parser(
        prog="python -m engine",
        description="One Pointsman engine: serves a model over the OpenAI HTTP API.",
        allow_abbrev=False,
    )
    for setting in fields(EngineConfig):
        _add_flag(parser, setting)
    parser.refuse_unknown(arguments)
    try:
        return EngineConfig(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Before argparse looks: it would rather complain that the flag which was misspelt is missing."""
        known = list(self._option_string_actions)
        for flag in (argument.split("=")[0] for argument in arguments if argument.startswith("--")):
            if flag not in known:
                nearest = difflib.get_close_matches(flag, known, n=1)
                self.error(f"unknown flag {flag}" + (f"; did you mean {nearest[0]}?" if nearest else ", see --help"))


class _Append(argparse.Action):
    """A flag that may be given again: its values as a tuple."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, value: Any, flag: str | None = None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), value))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _add_flag(parser: argparse.ArgumentParser, setting: "Field[Any]") -> None:
    about = setting.metadata["help"]
    if setting.type is bool:
        parser.add_argument(_flag(setting.name), action="store_true", help=about)
        return
    is_required = setting.default is MISSING
    if setting.default == ():
        metavar = setting.metadata["unit"].upper()
        parser.add_argument(_flag(setting.name), action=_Append, default=(), metavar=metavar, help=about)
        return
    parser.add_argument(
        _flag(setting.name),
        type=_value_type(setting),
        default=None if is_required else setting.default,
        required=is_required,
        choices=setting.metadata["choices"],
        metavar=None if setting.metadata["choices"] else (setting.metadata["unit"] or "VALUE").upper(),
        help=about if is_required or setting.default is None else f"{about} (default: %(default)s)",
    )


def _value_type(setting: "Field[Any]") -> type:
    """The type that the text of a flag becomes: of `int | None`, int."""
    kinds: dict[Any, type] = {int: int, int | None: int, float: float}
    return kinds.get(setting.type, str)
