"""Every setting, once: default, unit, one line of help. Flags, environment, TOML and the reference come from it.

Knows files and the environment; knows nothing of what the settings do. Order: flag, then `POINTSMAN_<NAME>`, then the
TOML file, then the default. An unknown key stops the start and suggests the nearest name.
"""

import argparse
import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

MOST_WORKERS = 64
# No setting: the key by which commands ask a router. In a command line others could read it.
KEY_VARIABLE = "POINTSMAN_API_KEY"


class ConfigError(Exception):
    """A setting is wrong; the message is one sentence that names it."""


def _setting(default: Any, help: str, unit: str = "", each: str = "URL") -> Any:
    metadata = {"help": help, "unit": unit, "each": each}
    if isinstance(default, tuple):
        return field(default=default, metadata=metadata | {"is_list": True})
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of `pointsman serve`."""

    replica: tuple[str, ...] = _setting(
        (),
        "an engine replica: URL[,tokenizer=PATH][,api_key=KEY][,kv=URL][,replay=URL][,ranks=N][,merge=MS[:N]]"
        "[,role=prefill|decode][,rtt=MS][,models=NAME[+NAME]], of http, https, grpc or grpcs; "
        "dns+http://NAME:PORT: one for each address of a name; file:///PATH: those in a file; repeatable",
    )
    warm_from: tuple[str, ...] = _setting(
        (),
        "admin port of a router before the same replicas, to learn from at the start: URL[,api_key=KEY]; repeatable",
    )
    host: str = _setting("127.0.0.1", "address of the data port")
    port: int = _setting(30000, "data port: inference over HTTP and SSE")
    workers: int = _setting(1, "router processes on this host that serve the data port together")
    admin_host: str = _setting("127.0.0.1", "address of the admin port")
    admin_port: int = _setting(30002, "admin port: metrics, replicas, drain")
    grpc: bool = _setting(False, "serve gRPC too")
    grpc_port: int = _setting(30001, "port of gRPC calls")
    grpc_tls_cert: str = _setting("", "PEM file of the gRPC port's certificate; with it the port speaks TLS only")
    grpc_tls_key: str = _setting("", "PEM file of that certificate's key")
    grpc_tls_client_ca: str = _setting("", "PEM file; only clients with a certificate from it may call")
    websocket_origin: tuple[str, ...] = _setting((), "pages that may open WebSockets, all by default; repeatable")
    policy: str = _setting("pointsman", "a routing policy by name, or the TOML file of a recipe: `pointsman policies`")
    model_alias: tuple[str, ...] = _setting((), "NAME=MODEL[:WEIGHT],...: another name for models")
    fallback: tuple[str, ...] = _setting((), "MODEL=OTHER,...: models tried where MODEL cannot be served; repeatable")
    pass_through: tuple[str, ...] = _setting(
        (), "engines' own POST routes to pass on, for a star all that begin so; repeatable", each="PATH[,PATH]"
    )
    max_in_flight: int = _setting(256, "open requests that one replica may hold")
    kv_transfer_token_s: float = _setting(
        0.00005, "moving a prompt token's KV from a prefill to a decode replica, until it is learned", "seconds"
    )
    max_open_requests: int = _setting(20000, "open requests in all processes of this host, queued ones included")
    max_waiting: int = _setting(10000, "requests that may wait for a replica")
    class_wait: tuple[str, ...] = _setting(
        ("bulk=none",),
        "longest wait of a class where it is not queue_timeout_s, in seconds; repeatable",
        each="CLASS=S",
    )
    class_share: tuple[str, ...] = _setting(
        ("normal=0.1", "low=0.05", "bulk=0.05"),
        "least share of a busy model's tokens that a class gets, whatever comes before it; repeatable",
        each="CLASS=RATIO",
    )
    keyless: bool = _setting(False, "serve a public address although there are no keys")
    trust_tenant_header: bool = _setting(False, "who has no key may name the tenant in x-pointsman-tenant")
    redis: str = _setting(
        "embedded",
        "where queues and limits are shared: a URL (redis, rediss or unix), embedded (a private server), or none: each "
        "process then bounds its replicas by requests, not by tokens",
    )
    state_dir: str = _setting("", "folder of keys and of the queue's server; else that of the user, for state")
    max_body_bytes: int = _setting(32 * 2**20, "largest request body", "bytes")
    request_timeout_s: float = _setting(600.0, "from arrival to the last byte of the answer", "seconds")
    queue_timeout_s: float = _setting(60.0, "wait for a replica", "seconds")
    connect_timeout_s: float = _setting(3.0, "connection to a replica", "seconds")
    first_byte_timeout_s: float = _setting(300.0, "from sending to the first byte of a replica's answer", "seconds")
    idle_timeout_s: float = _setting(60.0, "silence of a replica, or of a reading client, in mid-answer", "seconds")
    max_attempts: int = _setting(3, "replicas tried for one request, before its first byte")
    retry_budget_ratio: float = _setting(0.2, "retries as a share of requests")
    heartbeat_after_s: float = _setting(10.0, "a stream with no byte so far gets its head and a comment", "seconds")
    heartbeat_interval_s: float = _setting(15.0, "between comments of a silent stream", "seconds")
    probe_interval_s: float = _setting(2.0, "between health probes of a replica", "seconds")
    load_interval_s: float = _setting(0.5, "between load reports of a replica", "seconds")
    breaker_faults: int = _setting(3, "faults in a row that open a replica's breaker")
    breaker_open_s: float = _setting(2.0, "an open breaker waits before its next trial", "seconds")
    index_bytes: int = _setting(64 * 2**20, "most memory of a process's prefix index", "bytes")
    token_cache_bytes: int = _setting(64 * 2**20, "most memory of a process's tokenized text", "bytes")
    max_jobs: int = _setting(64, "jobs that run at a time on this host, behind requests whose clients wait; 0: no jobs")
    job_keep_s: float = _setting(86400.0, "a job and its answer are kept once it has ended", "seconds")
    response_keep_s: float = _setting(30 * 86400.0, "a stored response can be read and followed", "seconds")
    response_events_s: float = _setting(600.0, "the events of a resumable response are kept after its end", "seconds")
    max_responses_bytes: int = _setting(64 * 2**20, "stored responses of one tenant; the oldest go", "bytes")
    max_file_bytes: int = _setting(200 * 2**20, "largest file that a client may upload", "bytes")
    max_files_bytes: int = _setting(2 * 2**30, "files of one tenant together", "bytes")
    webhook_secret: tuple[str, ...] = _setting((), "whsec_...: signs webhooks, the newest first; repeatable")
    webhook_network: tuple[str, ...] = _setting((), "a private network that webhooks may go to; repeatable")
    webhook_http: bool = _setting(False, "webhooks may go to http:// addresses too")
    forward_authorization: bool = _setting(False, "pass the client's Authorization header to replicas")
    record: str = _setting("", "file to append a trace to: arrivals, lengths and block hashes of requests, no texts")
    record_max_bytes: int = _setting(2**30, "recording ends when the file has this size", "bytes")
    drain_timeout_s: float = _setting(30.0, "a stopping router waits for open requests", "seconds")
    log_level: str = _setting("info", "debug, info (a line a request), warning or error")


def pairs(name: str, texts: Sequence[str]) -> Mapping[str, float | None]:
    """A setting of `WORD=NUMBER` texts, `none` for None; the last of equal words counts. Raises ConfigError."""
    found: dict[str, float | None] = {}
    for text in texts:
        word, _, number = text.partition("=")
        try:
            found[word.strip()] = None if number.strip() == "none" else float(number)
        except ValueError:
            raise ConfigError(f"The setting `{name}` must hold texts like `bulk=0.5`, not {text!r}.") from None
    return found


def add_flags(parser: argparse.ArgumentParser, without: Sequence[str] = ()) -> None:
    """One flag a setting, and `--config FILE`. An absent flag is None, so that layers can be told apart."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings, named as the flags with underscores")
    for spec in (spec for spec in fields(Settings) if spec.name not in without):
        flag, text = "--" + spec.name.replace("_", "-"), _help(spec)
        if spec.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif spec.metadata.get("is_list"):
            parser.add_argument(flag, action="append", metavar=spec.metadata["each"], help=text)
        else:
            parser.add_argument(flag, metavar=spec.name.rsplit("_", 1)[-1].upper(), help=text)


def given(flags: Mapping[str, object]) -> Mapping[str, object]:
    """Of all flags of a command, those that are settings and were given."""
    names = {spec.name for spec in fields(Settings)}
    return {name: value for name, value in flags.items() if name in names and value is not None}


def load(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: str | None,
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> Settings:
    """Merge the layers; `defaults` are a command's own. Raises ConfigError that names the setting and its source."""
    merged: dict[str, object] = dict(defaults)
    for source, layer in (("the file " + (file or ""), _from_file(file)), ("the environment", _from_env(environment))):
        merged.update({name: _parsed(name, value, source) for name, value in layer.items()})
    merged.update({name: _parsed(name, value, "a flag") for name, value in flags.items()})
    settings = Settings(**merged)  # type: ignore[arg-type]  # _parsed has checked each against its field
    _check(settings)
    return settings


def reference(settings: Settings | None = None) -> str:
    """The settings as a commented TOML file: the reference page, or what is in force."""
    shown = settings or Settings()
    return "".join(f"# {_help(spec)}\n{spec.name} = {_toml(getattr(shown, spec.name))}\n" for spec in fields(Settings))


def credentials(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Headers of a command that asks a router which wants a key."""
    key = environment.get(KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


def nearest(name: str, known: list[str]) -> str:
    """`; did you mean `x`?` or nothing."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else ""


def _from_file(path: str | None) -> Mapping[str, object]:
    if path is None:
        return {}
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"The config file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {path} is not valid TOML: {error}.") from None


# Kubernetes sets these in every pod beside Services named pointsman or pointsman-anything; they are not ours.
_SERVICE_LINK = re.compile(r"POINTSMAN_(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP|SCTP))")


def _from_env(environment: Mapping[str, str]) -> Mapping[str, object]:
    named: dict[str, object] = {}
    for key, value in environment.items():
        if key == KEY_VARIABLE:
            continue
        is_link = _SERVICE_LINK.match(key) or (key.endswith("_PORT") and "://" in value)
        if key.startswith("POINTSMAN_") and not is_link:
            name = key.removeprefix("POINTSMAN_").lower()
            named[name] = value.split() if name in _LISTS else value
    return named


_LISTS = frozenset(spec.name for spec in fields(Settings) if spec.metadata.get("is_list"))
_WORDS: Mapping[object, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _parsed(name: str, value: object, source: str) -> object:
    known = {spec.name: spec for spec in fields(Settings)}
    if name not in known:
        raise ConfigError(f"Unknown setting `{name}` in {source}{nearest(name, list(known))}")
    spec = known[name]
    try:
        return _convert(spec, value)
    except (TypeError, ValueError):
        of = "replicas" if name == "replica" else f"texts {spec.metadata['each']}"
        wanted = f"a list of {of}" if spec.metadata.get("is_list") else _WORDS[spec.type]
        raise ConfigError(f"The setting `{name}` in {source} must be {wanted}, not {value!r}.") from None


def _convert(spec: "Field[Any]", value: object) -> object:
    if spec.metadata.get("is_list"):
        return tuple(_replica_text(item) for item in _listed(value))
    if spec.type is bool:
        return _truth(value)
    if isinstance(value, bool):
        raise TypeError
    if spec.type is str:
        return _string(value)
    number: int | float = int(str(value)) if spec.type is int else float(str(value))
    return number


def _listed(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return list(value)
    raise TypeError


def _replica_text(item: object) -> str:
    """A TOML table `{url = ..., tokenizer = ...}` and the flag's text are the same thing."""
    if isinstance(item, dict):
        options = [
            f"{key}={'+'.join(map(str, value)) if isinstance(value, list) else value}"
            for key, value in item.items()
            if key != "url"
        ]
        return ",".join([str(item.get("url", "")), *options])
    return _string(item)


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError


def _truth(value: object) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError


def _check(settings: Settings) -> None:
    for spec in fields(Settings):
        value = getattr(settings, spec.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < float("inf"):
            raise ConfigError(f"The setting `{spec.name}` must be a number from 0, not {value}.")
    for name in ("port", "admin_port"):
        if getattr(settings, name) > 65535:
            raise ConfigError(f"The setting `{name}` must be at most 65535.")
    for name in ("workers", "max_in_flight", "max_open_requests", "max_body_bytes", "max_attempts"):
        if getattr(settings, name) < 1:
            raise ConfigError(f"The setting `{name}` must be at least 1.")
    if settings.workers > MOST_WORKERS:
        raise ConfigError(f"The setting `workers` must be at most {MOST_WORKERS}.")
    levels = ["debug", "info", "warning", "error"]
    if settings.log_level not in levels:
        raise ConfigError(f"The setting `log_level` must be one of {', '.join(levels)}, not {settings.log_level!r}.")


def _help(spec: "Field[Any]") -> str:
    unit = f", in {spec.metadata['unit']}" if spec.metadata["unit"] else ""
    shown = "" if spec.default is MISSING or spec.default == () else f" (default {_toml(spec.default)})"
    return f"{spec.metadata['help']}{unit}{shown}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # else JSON's strings are TOML's
    return str(value)
