"""Which adapters the replicas of a model shall have: what was asked for, kept where all their routers see it.

Knows the book and how it is changed; knows no replicas. What was unloaded is remembered for a while: a replica that
could not be told at the time is told when it comes back.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from router.errors import PointsmanError
from router.ports import BookStore

REMEMBERED_S = 3600.0
MOST_TRIES = 20


class WantedUnavailable(PointsmanError):
    """Where the wanted adapters are kept cannot be reached, or is always changed by others."""

    status = 503
    type = "service_unavailable"
    code = "adapters_unavailable"


class Adapter(msgspec.Struct, frozen=True):
    """`path` is where replicas find its weights, as they understand it; `model` is the base model's first name."""

    name: str
    path: str
    model: str


class Wanted(msgspec.Struct, frozen=True):
    """All of them by name; `gone` are those unloaded of late, with the base model of each and the unix time."""

    adapters: Mapping[str, Adapter] = {}
    gone: Mapping[str, tuple[str, float]] = {}

    def wanting(self, adapter: Adapter) -> "Wanted":
        gone = {name: each for name, each in self.gone.items() if name != adapter.name}
        return Wanted({**self.adapters, adapter.name: adapter}, gone)

    def without(self, name: str, model: str, unix_s: float) -> "Wanted":
        adapters = {each: adapter for each, adapter in self.adapters.items() if each != name}
        gone = {each: when for each, when in self.gone.items() if unix_s - when[1] < REMEMBERED_S}
        return Wanted(adapters, {**gone, name: (model, unix_s)})

    def never_wanting(self, name: str) -> "Wanted":
        """As if it had not been asked for."""
        return Wanted({each: adapter for each, adapter in self.adapters.items() if each != name}, self.gone)

    def is_gone(self, name: str, model: str, unix_s: float) -> bool:
        """Was it unloaded of late, and not asked for since?"""
        when = self.gone.get(name)
        return when is not None and when[0] == model and unix_s - when[1] < REMEMBERED_S


_decoder = msgspec.json.Decoder(Wanted)


@dataclass(eq=False, slots=True)
class WantedBook:
    """The book as last read. `refresh` looks whether others have changed it."""

    store: BookStore
    unix: Callable[[], float] = time.time
    wanted: Wanted = field(default_factory=Wanted)
    _version: str = field(default="", init=False)

    async def refresh(self) -> None:
        """Raises whatever the store does, ValueError for what is no book: then the last one stands."""
        found = await self.store.load(self._version)
        if found is None:
            return
        version, document = found
        if not document and self.wanted != Wanted():
            # The store has lost it: it is given back what we know.
            saved = await self.store.save(msgspec.json.encode(self.wanted), version)
            self._version = self._version if saved is None else saved
        else:
            self._take(version, document)

    async def want(self, adapter: Adapter) -> None:
        """Raises WantedUnavailable, as the others do."""
        await self._edit(lambda wanted: wanted.wanting(adapter))

    async def forget(self, name: str, model: str) -> None:
        """It shall be nowhere."""
        await self._edit(lambda wanted: wanted.without(name, model, self.unix()))

    async def take_back(self, name: str) -> None:
        """It was asked for in vain."""
        await self._edit(lambda wanted: wanted.never_wanting(name))

    def is_gone(self, name: str, model: str) -> bool:
        return self.wanted.is_gone(name, model, self.unix())

    async def _edit(self, change: Callable[[Wanted], Wanted]) -> None:
        for _ in range(MOST_TRIES):
            try:
                await self.refresh()
                document = msgspec.json.encode(change(self.wanted))
                version = await self.store.save(document, self._version)
            except Exception as error:
                raise WantedUnavailable(
                    f"Which adapters are wanted cannot be kept: {error}", retry_after_s=5.0
                ) from None
            if version is not None:
                self._take(version, document)
                return
        raise WantedUnavailable("Which adapters are wanted is being changed by others.", retry_after_s=1.0)

    def _take(self, version: str, document: bytes) -> None:
        self.wanted = _decoder.decode(document) if document else Wanted()
        self._version = version

    def __repr__(self) -> str:
        return f"<WantedBook {', '.join(self.wanted.adapters) or 'nothing'}>"
