"""The two files that a batch writes, until they are whole: what was answered, and what was not. Knows paths and sizes;
knows no lines and no Redis."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Results:
    """Of one batch. Its methods are for threads."""

    folder: Path
    id: str

    @property
    def out(self) -> Path:
        return self.folder / f"{self.id}.out.part"

    @property
    def err(self) -> Path:
        return self.folder / f"{self.id}.err.part"

    def cut(self, out_bytes: int, err_bytes: int) -> None:
        """Back to what is known to be told."""
        for path, size in ((self.out, out_bytes), (self.err, err_bytes)):
            with path.open("ab") as file:
                if file.tell() > size:
                    file.truncate(size)

    def append(self, out: bytes, err: bytes) -> None:
        for path, told in ((self.out, out), (self.err, err)):
            if told:
                with path.open("ab") as file:
                    file.write(told)
                    file.flush()
                    os.fsync(file.fileno())

    def linked(self, path: Path) -> Path:
        """Another name of one of them, to be given away: what is not told of yet must not be gone."""
        link = path.with_suffix(".link")
        link.unlink(missing_ok=True)
        os.link(path, link)
        return link

    def clear(self) -> None:
        """All is told: their own names go."""
        for path in (self.out, self.err):
            path.unlink(missing_ok=True)
            path.with_suffix(".link").unlink(missing_ok=True)  # left where the file had been given away before

    def sizes(self) -> Sequence[int]:
        return [path.stat().st_size if path.exists() else 0 for path in (self.out, self.err)]
