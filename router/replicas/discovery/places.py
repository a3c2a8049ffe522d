"""Where replicas are found, by the texts of the setting: each names a replica, all those behind a DNS name, or a file
of them. Knows these three kinds; asks no replica anything.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from router.ports import Discovery
from router.replicas.discovery.dns import DnsDiscovery
from router.replicas.discovery.file import FileDiscovery
from router.replicas.discovery.static import StaticDiscovery, parse_replicas
from router.spec import Merge, ReplicaSpec

DNS, FILE = "dns+", "file://"
# One of each kind that a file may name one day.
OF_ANY_KIND = ReplicaSpec("grpc://any:1", merge=Merge(0.0), role="decode")
# A place that has never answered holds up the others for so many tries.
MOST_TRIES = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Places:
    """`discovery` lists what there is; `examples` are of every kind of replica that there may be."""

    discovery: Discovery
    examples: Sequence[ReplicaSpec]


def open_places(texts: Sequence[str]) -> Places:
    """Raises ValueError that says what is wrong with which text."""
    named = [spec for text in texts if not text.strip().startswith((DNS, FILE)) for spec in parse_replicas(text)]
    static = StaticDiscovery(named)
    behind_names = [DnsDiscovery.of(text.strip().removeprefix(DNS)) for text in texts if text.strip().startswith(DNS)]
    files = [FileDiscovery(_path(text.strip())) for text in texts if text.strip().startswith(FILE)]
    for each in files:
        each.read()  # so that a wrong one stops the start
    if not behind_names and not files:
        return Places(static, named)
    examples = [*named, *(example for each in behind_names for example in each.examples)]
    return Places(Together([static, *behind_names, *files]), [*examples, *([OF_ANY_KIND] if files else [])])


def _path(text: str) -> Path:
    parts = urlsplit(text)
    if parts.netloc or not parts.path or "," in text:
        raise ValueError(f"`{text}`: a file of replicas is file:///PATH, and what is to be said of them stands in it")
    return Path(unquote(parts.path))


@dataclass(eq=False, slots=True)
class Together:
    """All that several places list; of those named twice the first counts. A place that fails keeps what it listed
    before: its replicas may well be there."""

    places: Sequence[Discovery]
    _last: dict[int, Sequence[ReplicaSpec]] = field(default_factory=dict, init=False)
    _num_tries: int = field(default=0, init=False)

    async def list(self) -> Sequence[ReplicaSpec]:
        """Raises what a place raises that has never answered; after some tries the others are listed without it."""
        self._num_tries += 1
        found: dict[str, ReplicaSpec] = {}
        for number, place in enumerate(self.places):
            for spec in await self._of(number, place):
                found.setdefault(spec.id, spec)
        return list(found.values())

    async def _of(self, number: int, place: Discovery) -> Sequence[ReplicaSpec]:
        try:
            self._last[number] = await place.list()
        except (OSError, ValueError) as error:
            if number not in self._last and self._num_tries < MOST_TRIES:
                raise
            known = self._last.get(number, ())
            log.warning("%r cannot be read, keeping the %d replicas known: %s", place, len(known), error)
        return self._last.get(number, ())

    def __repr__(self) -> str:
        return f"<Together {', '.join(map(repr, self.places))}>"
