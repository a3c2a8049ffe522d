"""Replicas named in a file, which is read again and again: lines as the setting has them, or the JSON that Prometheus'
file discovery reads, with what is to be said of each in its labels. Knows files and both forms.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from router.replicas.discovery.dns import HOST
from router.replicas.discovery.static import OPTIONS, StaticDiscovery, parse_replicas
from router.spec import ReplicaSpec

SCHEME_LABEL = "__scheme__"
# Labels of others that say the same as one of our options, and what their values are to us; None: nothing.
ROLE_LABELS = ("llm-d.ai/role", "llm_d_ai_role")
ROLES: Mapping[str, str | None] = {"prefill": "prefill", "decode": "decode", "prefill-decode": None, "both": None}
MAX_BYTES = 16 * 2**20


class TargetGroup(msgspec.Struct):
    """Of Prometheus' file discovery. Labels that are none of ours are others'."""

    targets: list[str]
    labels: dict[str, str] = {}


_decoder = msgspec.json.Decoder(list[TargetGroup])


@dataclass(frozen=True, slots=True)
class FileDiscovery:
    """JSON where its name ends with .json, else a replica a line; `#` begins a comment line."""

    path: Path

    async def list(self) -> Sequence[ReplicaSpec]:
        """Raises ValueError that says where it is wrong, or why it cannot be read: then the last one that was right
        stands."""
        return await asyncio.to_thread(self.read)

    def read(self) -> Sequence[ReplicaSpec]:
        """As `list`, at once."""
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ValueError(f"the file of replicas {self.path} cannot be read: {error.strerror}") from None
        if len(content) > MAX_BYTES:
            raise ValueError(f"the file of replicas {self.path} has more than {MAX_BYTES} bytes")
        try:
            texts = _targets(content) if self.path.suffix == ".json" else _lines(content)
            specs = [spec for text in texts for spec in parse_replicas(text)]
            return StaticDiscovery(specs).specs
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"the file of replicas {self.path}: {error}") from None

    def __repr__(self) -> str:
        return f"<FileDiscovery {self.path}>"


def _lines(content: bytes) -> Iterator[str]:
    lines = (line.strip() for line in content.decode().splitlines())
    return (line for line in lines if line and not line.startswith("#"))


def _targets(content: bytes) -> Iterator[str]:
    for group in _decoder.decode(content):
        for target in group.targets:
            yield _text(target, group.labels)


def _text(target: str, labels: Mapping[str, str]) -> str:
    """As the setting would have it."""
    scheme = labels.get(SCHEME_LABEL, "http")
    url = target if "://" in target else f"{scheme}://{target}"
    host = urlsplit(url).netloc.removesuffix(f":{urlsplit(url).port}")
    named = {name: value for name, value in labels.items() if name in OPTIONS}
    for name in ROLE_LABELS:
        role = ROLES.get(labels.get(name, ""))
        if role is not None:
            named.setdefault("role", role)
    comma = next((name for name, value in named.items() if "," in value), None)
    if comma is not None:
        raise ValueError(f"the label `{comma}` of {target} holds a comma")
    return ",".join([url, *(f"{name}={value.replace(HOST, host)}" for name, value in named.items())])
