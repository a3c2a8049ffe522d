"""Replicas behind one DNS name, as a headless service of Kubernetes has them: one for each address. Knows names and the
text form of a replica.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from router.replicas.discovery.static import parse_replicas
from router.spec import ReplicaSpec

# Stands for the address in what is said of each.
HOST = "{host}"
SCHEMES = ("http", "grpc")

Resolve = Callable[[str, int], Coroutine[Any, Any, Sequence[str]]]


async def resolve(name: str, port: int) -> Sequence[str]:
    """Addresses, beside the event loop. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return sorted({str(address[4][0]) for address in found})


@dataclass(frozen=True, slots=True)
class DnsDiscovery:
    """`options` are those of a replica, from the comma on; `{host}` in them is each one's address."""

    scheme: str
    name: str
    port: int
    options: str
    resolve: Resolve = resolve

    @classmethod
    def of(cls, text: str) -> Self:
        """From `http://NAME:PORT,kv=tcp://{host}:5557`. Raises ValueError."""
        url, comma, options = text.partition(",")
        try:
            parts = urlsplit(url.strip())
            name, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"`dns+{text}`: {error}") from None
        if parts.scheme not in SCHEMES:
            why = "a certificate names no address" if parts.scheme in ("https", "grpcs") else "there is no such scheme"
            raise ValueError(f"`dns+{url}`: behind dns+ stands {' or '.join(SCHEMES)}; {why}")
        if name is None or port is None or parts.path.rstrip("/"):
            raise ValueError(f"`dns+{url}`: it is dns+{parts.scheme}://NAME:PORT, no more and no less")
        found = cls(parts.scheme, name, port, comma + options)
        if any(spec.models for spec in found.examples):
            raise ValueError(f"`dns+{url}`: an outside provider, with `models`, is named by its URL")
        return found

    @property
    def examples(self) -> Sequence[ReplicaSpec]:
        """What each of them is like. Raises ValueError where the options are wrong."""
        return self._at(self.name)

    async def list(self) -> Sequence[ReplicaSpec]:
        """Raises OSError."""
        return [spec for address in await self.resolve(self.name, self.port) for spec in self._at(address)]

    def _at(self, address: str) -> Sequence[ReplicaSpec]:
        host = f"[{address}]" if ":" in address else address
        return parse_replicas(f"{self.scheme}://{host}:{self.port}{self.options.replace(HOST, host)}")

    def __repr__(self) -> str:
        return f"<DnsDiscovery {self.name}:{self.port}>"
