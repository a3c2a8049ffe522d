"""Replicas named on the command line or in the config. Knows the text form of a replica; asks nobody anything."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import SplitResult, urlsplit

from router.spec import Merge, ReplicaSpec, Role

OPTIONS = ("tokenizer", "api_key", "kv", "replay", "ranks", "merge", "role", "bootstrap", "models", "rtt")
FORM = (
    "URL[,tokenizer=PATH][,api_key=KEY][,kv=EVENTS_URL|auto][,replay=URL][,ranks=N][,merge=MS[:N]]"
    "[,role=prefill|decode][,bootstrap=PORT][,models=NAME[+NAME]][,rtt=MS]"
)
# Of these an outside provider has none.
OF_ENGINES = ("kv", "replay", "ranks", "merge", "role", "bootstrap")
SCHEMES = ("http", "https", "grpc", "grpcs")
# ZMQ, what is polled, and our own engine's gRPC.
EVENT_SCHEMES = ("tcp", "ipc", "http", "https", "grpc")
MOST_RANKS = 1024
MOST_MERGE_MS, MOST_MERGED = 1000.0, 1024
MOST_RTT_MS = 10_000.0


@dataclass(frozen=True, slots=True)
class StaticDiscovery:
    """A list that never changes. Raises ValueError where it names a replica twice."""

    specs: Sequence[ReplicaSpec]

    def __post_init__(self) -> None:
        ids = [spec.id for spec in self.specs]
        twice = next((id for id in ids if ids.count(id) > 1), None)
        if twice is not None:
            raise ValueError(f"replica {twice} is given twice")

    async def list(self) -> Sequence[ReplicaSpec]:
        return self.specs


def parse_replica(text: str) -> ReplicaSpec:
    """From `http://a:8000,tokenizer=PATH,api_key=KEY`. Raises ValueError that says what is wrong, never the key."""
    specs = parse_replicas(text)
    if len(specs) > 1:
        raise ValueError(f"replica `{specs[0].url}`: `ranks` makes several of it")
    return specs[0]


def parse_replicas(text: str) -> list[ReplicaSpec]:
    """As `parse_replica`; `ranks=N` stands for N replicas, whose ports follow each other. Raises ValueError."""
    first, *options = (part.strip() for part in text.strip().split(","))
    is_provider = any(option.startswith("models=") for option in options)
    url = _parse_url(first, is_provider=is_provider)
    named = _parse_options(url, options)
    models = _parse_models(url, named)
    num_ranks = _parse_ranks(url, named.pop("ranks", None))
    _check_events(url, named)
    merge = _parse_merge(url, named.pop("merge", None))
    spec = ReplicaSpec(url, named.get("api_key"), named.get("tokenizer"), named.get("kv"), named.get("replay"))
    role = _parse_role(url, named.get("role"))
    spec = replace(spec, merge=merge, role=role, bootstrap_port=_parse_bootstrap(url, role, named.get("bootstrap")))
    spec = replace(spec, models=models, round_trip_s=_parse_rtt(url, named.get("rtt")))
    return [spec] if num_ranks is None else [_of_rank(spec, rank) for rank in range(num_ranks)]


def _parse_models(url: str, named: Mapping[str, str]) -> tuple[str, ...]:
    """Those of an outside provider; none for an engine, which is asked for them."""
    if "models" not in named:
        return ()
    wrong = [name for name in OF_ENGINES if name in named]
    if wrong or named.get("tokenizer") == "engine" or url.startswith("grpc"):
        what = f"`{wrong[0]}`" if wrong else "gRPC" if url.startswith("grpc") else "`tokenizer=engine`"
        raise ValueError(f"replica `{url}`: `models` makes it an outside provider, which has no {what}")
    models = tuple(name.strip() for name in named["models"].split("+"))
    if not all(models) or len(set(models)) < len(models):
        raise ValueError(f"replica `{url}`: `models` must be names with a + between them, not `{named['models']}`")
    return models


def _parse_ranks(url: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise ValueError(f"replica `{url}`: `ranks` must be a number from 1 to {MOST_RANKS}, not `{text}`")
    return int(text)


def _parse_role(url: str, text: str | None) -> Role | None:
    if text in (None, "prefill", "decode"):
        return cast(Role | None, text)
    raise ValueError(f"replica `{url}`: `role` must be prefill or decode, not `{text}`")


def _parse_bootstrap(url: str, role: Role | None, text: str | None) -> int | None:
    if text is None:
        return None
    if role != "prefill":
        raise ValueError(f"replica `{url}`: `bootstrap` goes with `role=prefill`")
    if url.startswith("grpc"):
        raise ValueError(f"replica `{url}`: `bootstrap` is SGLang's, which is spoken to over http")
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ValueError(f"replica `{url}`: `bootstrap` must be a port from 1 to 65535, not `{text}`")
    return int(text)


def _parse_rtt(url: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    if not 0.0 <= milliseconds <= MOST_RTT_MS:
        raise ValueError(f"replica `{url}`: `rtt` must be milliseconds from 0 to {MOST_RTT_MS:g}, not `{text}`")
    return milliseconds / 1e3


def _parse_merge(url: str, text: str | None) -> Merge | None:
    if text is None:
        return None
    ms, colon, most = text.partition(":")
    try:
        merge = Merge(float(ms) / 1e3, int(most)) if colon else Merge(float(ms) / 1e3)
    except ValueError:
        merge = None
    if merge is None or not 0.0 < merge.wait_s <= MOST_MERGE_MS / 1e3 or not 2 <= merge.most <= MOST_MERGED:
        raise ValueError(
            f"replica `{url}`: `merge` must be milliseconds up to {MOST_MERGE_MS:g} and then, behind a colon, at most "
            f"how many requests (2 to {MOST_MERGED}): `merge=5:32`, not `{text}`"
        )
    return merge


def _check_events(url: str, named: dict[str, str]) -> None:
    kv, replay = named.get("kv"), named.get("replay")
    if kv is not None and kv != "auto" and urlsplit(kv).scheme not in EVENT_SCHEMES:
        raise ValueError(f"replica `{url}`: `kv` must be auto or a URL of {', '.join(EVENT_SCHEMES)}, not `{kv}`")
    if replay is not None and (kv is None or urlsplit(kv).scheme not in ("tcp", "ipc")):
        raise ValueError(f"replica `{url}`: `replay` goes with `kv=tcp://...`")
    if replay is not None and urlsplit(replay).scheme not in ("tcp", "ipc"):
        raise ValueError(f"replica `{url}`: `replay` must be a URL of tcp or ipc, not `{replay}`")


def _of_rank(spec: ReplicaSpec, rank: int) -> ReplicaSpec:
    """Engines give each data-parallel rank the ports after those of the one before."""
    kv = None if spec.kv is None or spec.kv == "auto" else _next_port(spec.url, spec.kv, rank)
    replay = None if spec.replay is None else _next_port(spec.url, spec.replay, rank)
    return replace(spec, url=_next_port(spec.url, spec.url, rank), kv=kv or spec.kv, replay=replay, rank=rank)


def _next_port(replica: str, url: str, rank: int) -> str:
    before, colon, port = url.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"replica `{replica}`: with `ranks`, `{url}` must end with a port")
    return f"{before}:{int(port) + rank}"


def _parse_url(text: str, *, is_provider: bool) -> str:
    if not text:
        raise ValueError(f"a replica needs a URL first: {FORM}")
    if "://" not in text:
        raise ValueError(f"replica `{text}`: the scheme is missing; did you mean `http://{text}`?")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"replica `{text}`: {error}") from error
    _check_url(text, parts)
    if parts.path.rstrip("/").endswith("/v1") and not is_provider:
        raise ValueError(f"replica `{text}`: give the server's root, without /v1; an outside provider has `models`")
    address = f"[{host}]" if ":" in (host or "") else host
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{address}{'' if port is None else f':{port}'}{path}"


def _check_url(text: str, parts: SplitResult) -> None:
    if parts.scheme not in SCHEMES:
        raise ValueError(f"replica `{text}`: the scheme is `{parts.scheme}`, it must be one of {', '.join(SCHEMES)}")
    if parts.scheme.startswith("grpc") and (parts.port is None or parts.path):
        raise ValueError(f"replica `{text}`: over gRPC it is scheme, host and port, no more: grpc://HOST:PORT")
    if not parts.hostname:
        raise ValueError(f"replica `{text}`: the host is missing")
    if any(character.isspace() for character in text):
        raise ValueError(f"replica `{text}`: a URL holds no spaces")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"replica at {parts.hostname}: a URL with a user is not supported, give api_key=KEY")
    if parts.query or parts.fragment:
        raise ValueError(f"replica `{text}`: a `?` or `#` part is not supported")


def _parse_options(url: str, options: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for place, option in enumerate(options, start=1):
        key, has_value, value = (part.strip() for part in option.partition("="))
        if not has_value:
            # Not shown: it may be the rest of a key that holds a comma.
            raise ValueError(f"replica `{url}`: option {place} is not key=value; the form is {FORM}")
        if key not in OPTIONS:
            nearest = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.4)
            hint = f"did you mean `{nearest[0]}`?" if nearest else f"there are {', '.join(OPTIONS)}"
            raise ValueError(f"replica `{url}`: unknown option `{key}`; {hint}")
        if key in named:
            raise ValueError(f"replica `{url}`: `{key}` is given twice")
        if not value:
            raise ValueError(f"replica `{url}`: `{key}` has no value")
        named[key] = value
    return named
