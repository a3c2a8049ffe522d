"""Files that clients upload and batches write, on this host's disk. Knows names, sizes and owners; knows nothing of
what is in them. Processes that share the folder share the files.

Nothing blocks the loop: each step on disk is a thread's. A file is there once it is whole; what was cancelled on the
way leaves nothing.
"""

import asyncio
import contextlib
import errno
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from router.errors import BodyTooLarge, InvalidRequest, PointsmanError

_ID = re.compile(r"file-[0-9a-f]{24}")
PIECE_BYTES = 2**20
# No upload pauses for so long.
UPLOAD_S = 3600.0


class UnknownFile(InvalidRequest):
    status = 404
    code = "file_not_found"


class NoSpace(PointsmanError):
    """The disk, or an owner's share of it, is full."""

    status = 507
    type = "insufficient_storage"
    code = "no_space"


class FileRecord(msgspec.Struct, frozen=True):
    """OpenAI's file object, and whose it is. `expires_at` and `created_at` in seconds since 1970."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None = None

    def told(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["owner"]
        return fields | {"object": "file", "status": "processed"}


@dataclass(frozen=True, slots=True)
class Shelf:
    """`owner_bytes` is what one owner's files may take together."""

    folder: Path
    max_file_bytes: int = 200 * 2**20
    owner_bytes: int = 2 * 2**30
    wall: Callable[[], float] = time.time

    async def put(
        self,
        owner: str,
        filename: str,
        purpose: Callable[[], Awaitable[str]],
        pieces: AsyncIterator[bytes],
        keep_s: float | None = None,
    ) -> FileRecord:
        """`purpose` is asked for behind the last piece. Raises BodyTooLarge, NoSpace, or what that raises."""
        id = f"file-{secrets.token_hex(12)}"
        part = self.folder / f"{id}.part"
        most = self.owner_bytes - await asyncio.to_thread(self._taken, owner)
        num_bytes = 0
        try:
            with _no_space():
                await asyncio.to_thread(self.folder.mkdir, parents=True, exist_ok=True, mode=0o700)
                file = await asyncio.to_thread(part.open, "wb")
                try:
                    async for piece in pieces:
                        num_bytes += len(piece)
                        self._check(num_bytes, most)
                        await asyncio.to_thread(file.write, piece)
                finally:
                    await asyncio.to_thread(file.close)
            now = int(self.wall())
            expires_at = None if keep_s is None else now + int(keep_s)
            record = FileRecord(id, owner, filename, await purpose(), num_bytes, now, expires_at)
            await self.adopt(part, record)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return record

    async def adopt(self, path: Path, record: FileRecord) -> None:
        """A finished file becomes one of ours."""
        with _no_space():
            await asyncio.to_thread(self._adopt, path, record)

    async def get(self, owner: str, id: str) -> FileRecord:
        """Raises UnknownFile, also for another owner's."""
        record = await asyncio.to_thread(self._read, id)
        if record is None or record.owner != owner:
            raise UnknownFile(f"There is no file `{id}`.", param="file_id")
        return record

    async def owned(self, owner: str) -> list[FileRecord]:
        """The latest first."""
        return await asyncio.to_thread(self._list, owner)

    async def delete(self, owner: str, id: str) -> None:
        """Raises UnknownFile."""
        await self.get(owner, id)
        await asyncio.to_thread(self._remove, id)

    async def sweep(self) -> None:
        """Remove what has expired."""
        await asyncio.to_thread(self._sweep)

    def path(self, id: str) -> Path:
        return self.folder / f"{id}.data"

    def _check(self, num_bytes: int, most: int) -> None:
        if num_bytes > self.max_file_bytes:
            raise BodyTooLarge(f"The file is over the limit of {self.max_file_bytes} bytes.", param="file")
        if num_bytes > most:
            raise NoSpace(f"All your files together may take {self.owner_bytes} bytes; delete some.", param="file")

    def _adopt(self, path: Path, record: FileRecord) -> None:
        path.replace(self.path(record.id))
        described = self.folder / f"{record.id}.json.part"
        described.write_bytes(msgspec.json.encode(record))
        described.replace(self.folder / f"{record.id}.json")

    def _read(self, id: str) -> FileRecord | None:
        if not _ID.fullmatch(id):
            return None
        try:
            record = msgspec.json.decode((self.folder / f"{id}.json").read_bytes(), type=FileRecord)
        except FileNotFoundError:
            return None
        return None if record.expires_at is not None and record.expires_at < self.wall() else record

    def _all(self) -> list[FileRecord]:
        found = (self._read(path.stem) for path in self.folder.glob("file-*.json"))
        return [record for record in found if record is not None]

    def _list(self, owner: str) -> list[FileRecord]:
        mine = [record for record in self._all() if record.owner == owner]
        return sorted(mine, key=lambda record: (-record.created_at, record.id))

    def _taken(self, owner: str) -> int:
        return sum(record.bytes for record in self._list(owner))

    def _remove(self, id: str) -> None:
        (self.folder / f"{id}.json").unlink(missing_ok=True)
        self.path(id).unlink(missing_ok=True)

    def _sweep(self) -> None:
        for path in self.folder.glob("file-*.json"):
            if self._read(path.stem) is None:
                self._remove(path.stem)
        for path in self.folder.glob("file-*.part"):  # of a process that was killed
            with contextlib.suppress(FileNotFoundError):
                if self.wall() - path.stat().st_mtime > UPLOAD_S:
                    path.unlink()


@contextlib.contextmanager
def _no_space() -> Iterator[None]:
    """A full disk is the client's to know."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace("There is no space left on this router's disk.") from None
        raise
