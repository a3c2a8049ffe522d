"""Replicas named on the command line or in the config. Knows the text form of a replica; asks nobody anything."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from router.core import ReplicaSpec

OPTIONS = ("tokenizer", "api_key")
FORM = "URL[,tokenizer=PATH][,api_key=KEY]"


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
    first, *options = (part.strip() for part in text.strip().split(","))
    url = _parse_url(first)
    return ReplicaSpec(url, **_parse_options(url, options))


def _parse_url(text: str) -> str:
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
    address = f"[{host}]" if ":" in (host or "") else host
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{address}{'' if port is None else f':{port}'}{path}"


def _check_url(text: str, parts: SplitResult) -> None:
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"replica `{text}`: the scheme is `{parts.scheme}`, it must be http or https")
    if not parts.hostname:
        raise ValueError(f"replica `{text}`: the host is missing")
    if any(character.isspace() for character in text):
        raise ValueError(f"replica `{text}`: a URL holds no spaces")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"replica at {parts.hostname}: a URL with a user is not supported, give api_key=KEY")
    if parts.query or parts.fragment:
        raise ValueError(f"replica `{text}`: a `?` or `#` part is not supported")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError(f"replica `{text}`: give the server's root, without /v1")


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
