"""The keys in force: read from where they are kept, changed there, and handed to those who let in. Knows a store and
the callers; knows no requests and no HTTP.

What cannot be read changes nothing: the last good book stays in force.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from router.admission import records
from router.admission.bookfile import BookFile
from router.admission.callers import Callers
from router.admission.records import Book
from router.errors import PointsmanError
from router.ports import BookStore

MOST_TRIES = 20
log = logging.getLogger(__name__)

Change = Callable[[Book], tuple[Any, ...]]


class KeysUnavailable(PointsmanError):
    """Where keys are kept cannot be reached, or is always changed by others."""

    status = 503
    type = "service_unavailable"
    code = "keys_unavailable"


@dataclass(eq=False, slots=True)
class Keyring:
    """`refresh` looks whether others have changed the book; call it now and then. `copy` is what stands while the store
    cannot be asked."""

    store: BookStore
    callers: Callers
    version: str = ""
    copy: BookFile | None = None
    _is_failing: bool = field(default=False, init=False)

    async def refresh(self) -> None:
        try:
            found = await self.store.load(self.version)
            if found is not None and not (self.copy and not found[1] and self.callers.book.keys):
                self.take(*found)
                await self._keep_copy(found[1])
            elif found is not None:
                await self._restore(found[0])
        except Exception as error:
            if not self._is_failing:
                log.error("keys cannot be read, those known stay in force: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    async def _restore(self, known: str) -> None:
        """A store that has lost the keys must not open every door: it is given back those that we know."""
        document = records.encode(self.callers.book)
        version = await self.store.save(document, known)
        if version is not None:
            log.warning("the store had lost its keys: they were restored from what this router knows")
            self.version = version

    async def _keep_copy(self, document: bytes) -> None:
        if self.copy is not None:
            known = await self.copy.load("")
            if known is not None and known[1] != document:
                await self.copy.save(document, known[0])

    def take(self, version: str, document: bytes) -> None:
        """Put a book in force. Raises ValueError for what is no book."""
        self.callers.replace(records.decode(document) if document else Book(), time.monotonic())
        self.version = version

    async def edit(self, change: Change) -> tuple[Any, ...]:
        """Apply `change(book) -> (book, ...)` to the newest book, and return the rest once that is kept.

        Raises what `change` raises, and KeysUnavailable.
        """
        for _ in range(MOST_TRIES):
            try:
                found = await self.store.load(self.version)
                if found is not None:
                    self.take(*found)
                changed, *rest = change(self.callers.book)
                version = await self.store.save(records.encode(changed), self.version)
            except PointsmanError:
                raise
            except Exception as error:
                raise KeysUnavailable(f"The keys cannot be changed: {error}", retry_after_s=5.0) from None
            if version is not None:
                self.take(version, records.encode(changed))
                await self._keep_copy(records.encode(changed))
                return tuple(rest)
        raise KeysUnavailable("The keys are being changed by others.", retry_after_s=1.0)

    def __repr__(self) -> str:
        return f"<Keyring {self.callers!r}>"
