"""Which addresses a webhook may go to. Knows URLs and networks: a client must not make us knock at doors that it cannot
reach itself. The address that was checked is the one that is connected to, because the check is the resolver."""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from router.errors import InvalidRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_URL_CHARS = 2000


class AddressRefused(OSError):
    """The name leads to where no webhook may go."""


@dataclass(frozen=True, slots=True)
class Reach:
    """`allowed` networks are reachable though they are private; `allows_http` where TLS is not asked for."""

    allowed: Sequence[Network] = ()
    allows_http: bool = False

    def check_url(self, url: str) -> None:
        """Raises InvalidRequest for what can be seen to be wrong before a name is resolved."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise _wrong("is not a URL") from None
        schemes = ("https", "http") if self.allows_http else ("https",)
        if parts.scheme not in schemes:
            raise _wrong(f"must begin with {' or '.join(scheme + '://' for scheme in schemes)}")
        if not host or parts.username is not None or parts.password is not None or len(url) > MAX_URL_CHARS:
            raise _wrong("must name a host, without a user, in at most 2000 characters")
        address = _literal(host)
        if address is not None and not self.may_reach(address):
            raise _wrong(f"leads to {address}, which is not a public address")

    def may_reach(self, address: Address) -> bool:
        mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
        address = mapped or address
        if any(address in network for network in self.allowed):
            return True
        return address.is_global and not address.is_multicast and not address.is_reserved


@dataclass(eq=False)
class CheckedResolver(AbstractResolver):
    """Gives only addresses that may be reached. Raises AddressRefused where none is."""

    reach: Reach
    inner: AbstractResolver = field(default_factory=ThreadedResolver)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self.inner.resolve(host, port, family)
        kept = [each for each in found if self.reach.may_reach(ipaddress.ip_address(each["host"].split("%")[0]))]
        if not kept:
            raise AddressRefused(f"{host} leads to no public address")
        return kept

    async def close(self) -> None:
        await self.inner.close()


def parse_networks(texts: Sequence[str]) -> list[Network]:
    """Raises ValueError that quotes what is wrong."""
    return [ipaddress.ip_network(text) for text in texts]


def _literal(host: str) -> Address | None:
    """An address in any form that a connection would take it in: `127.1` and `0x7f000001` are addresses too."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"The webhook's address {what}.", param="webhook_endpoint")
