"""The book of keys in a file of one host: `ports.BookStore`. Knows paths and locks; knows nothing of what a book says.

It is replaced as a whole, under a lock, so that a reader sees one or the other; only its owner may read it.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NOTHING = "none"


@dataclass(frozen=True, slots=True)
class BookFile:
    """A version is what the file's inode says of it."""

    path: Path

    async def load(self, known: str) -> tuple[str, bytes] | None:
        return await asyncio.to_thread(self.load_now, known)

    async def save(self, document: bytes, known: str) -> str | None:
        return await asyncio.to_thread(self.save_now, document, known)

    def load_now(self, known: str) -> tuple[str, bytes] | None:
        """See `ports.BookStore`; for who has no event loop yet. Raises OSError."""
        if self._version() == known:
            return None
        try:
            with self.path.open("rb") as file:
                return _version_of(os.fstat(file.fileno())), file.read()
        except FileNotFoundError:
            return NOTHING, b""

    def save_now(self, document: bytes, known: str) -> str | None:
        with self._locked():
            if self._version() != known:
                return None
            new = self.path.with_suffix(".new")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            return self._version()

    def _version(self) -> str:
        try:
            return _version_of(self.path.stat())
        except FileNotFoundError:
            return NOTHING

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _version_of(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"
