"""Keys in a file, read and changed by several processes."""

import asyncio
import stat
from pathlib import Path

import pytest

from router.admission import records
from router.admission.bookfile import BookFile
from router.admission.callers import Callers
from router.admission.keyring import Keyring, KeysUnavailable
from router.errors import InvalidRequest


def ring(path: Path) -> Keyring:
    return Keyring(BookFile(path / "state" / "keys.json"), Callers())


async def create(keyring: Keyring, name: str) -> None:
    await keyring.edit(lambda book: records.create_key(book, {"name": name}, 0.0))


async def test_a_change_by_one_process_is_heeded_by_another(tmp_path: Path) -> None:
    one, other = ring(tmp_path), ring(tmp_path)
    await other.refresh()
    await create(one, "alice")
    assert not other.callers.are_keys_needed
    await other.refresh()
    assert [key.name for key in other.callers.book.keys.values()] == ["alice"]


async def test_changes_at_once_lose_nothing(tmp_path: Path) -> None:
    rings = [ring(tmp_path) for _ in range(4)]
    await asyncio.gather(*(create(keyring, f"{n}") for n, keyring in enumerate(rings)))
    await rings[0].refresh()
    assert sorted(key.name for key in rings[0].callers.book.keys.values()) == ["0", "1", "2", "3"]


async def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    await create(ring(tmp_path), "alice")
    path = tmp_path / "state" / "keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_book_that_cannot_be_read_leaves_the_last_good_one_in_force_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keyring = ring(tmp_path)
    await create(keyring, "alice")
    (tmp_path / "state" / "keys.json").write_text('{"keys": 3}')
    for _ in range(3):
        await keyring.refresh()
    assert keyring.callers.are_keys_needed
    assert len(caplog.records) == 1
    with pytest.raises(KeysUnavailable):
        await create(keyring, "bob")


async def test_a_change_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    keyring = ring(tmp_path)
    with pytest.raises(InvalidRequest):
        await keyring.edit(lambda book: records.create_key(book, {"roles": ["x"]}, 0.0))
    assert not (tmp_path / "state" / "keys.json").exists()
