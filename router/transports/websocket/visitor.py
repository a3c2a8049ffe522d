"""Who is on the other end of a socket, and the headers that each of its requests has. Knows the handshake and how a key
is shown; what a key may do is not its matter."""

from collections.abc import Callable
from dataclasses import dataclass, field

from router.core import Headers
from router.errors import PointsmanError

# Raises Unauthorized or Forbidden for headers of whom nothing may be asked.
Identify = Callable[[Headers], object]

# Of the handshake, not of the requests that follow: one id for many requests would be no id.
_OF_HANDSHAKE = frozenset(("upgrade", "connection", "host", "origin", "x-request-id", "x-client-request-id"))


@dataclass(eq=False, slots=True)
class Visitor:
    """`shown` are the handshake's headers, `key` what came with it as a subprotocol."""

    shown: Headers
    key: str | None
    identify: Identify
    headers: Headers = field(init=False)

    def __post_init__(self) -> None:
        self.headers = _asking_headers(self.shown, self.key)

    @property
    def is_known(self) -> bool:
        """May it ask for anything?"""
        try:
            self.identify(self.headers)
        except PointsmanError:
            return False
        return True

    def show(self, key: str) -> None:
        """Another key from now on. Raises Unauthorized or Forbidden, and goes on as before."""
        headers = _asking_headers(self.shown, key)
        self.identify(headers)
        self.headers = headers


def _asking_headers(headers: Headers, key: str | None) -> Headers:
    """The handshake's headers as those of each request on the socket."""
    kept = tuple(
        (name, value)
        for name, value in headers
        if name not in _OF_HANDSHAKE and not name.startswith("sec-websocket") and not (key and name == "authorization")
    )
    return kept if key is None else (*kept, ("authorization", f"Bearer {key}"))
