from pathlib import Path

import pytest

from router.admission.bookfile import BookFile
from router.replicas.wanted import REMEMBERED_S, Adapter, Wanted, WantedBook, WantedUnavailable

RED, BLUE = Adapter("red", "/red", "base"), Adapter("blue", "/blue", "base")


@pytest.fixture
def file(tmp_path: Path) -> BookFile:
    return BookFile(tmp_path / "adapters.json")


async def test_what_one_process_wants_another_reads(file: BookFile) -> None:
    one, other = WantedBook(file), WantedBook(file)
    await one.want(RED)
    await other.want(BLUE)
    await one.refresh()
    assert one.wanted.adapters == other.wanted.adapters == {"red": RED, "blue": BLUE}
    assert repr(one) == "<WantedBook red, blue>"


async def test_what_is_unloaded_is_remembered_for_a_while_and_forgotten_when_wanted_again(file: BookFile) -> None:
    now = 1000.0
    book = WantedBook(file, unix=lambda: now)
    await book.want(RED)
    await book.forget("red", "base")
    assert not book.wanted.adapters
    assert book.is_gone("red", "base")
    assert not book.is_gone("red", "other")
    now += REMEMBERED_S
    assert not book.is_gone("red", "base")
    await book.forget("blue", "base")
    assert list(book.wanted.gone) == ["blue"]
    await book.want(BLUE)
    assert book.wanted == Wanted({"blue": BLUE})


async def test_what_was_asked_for_in_vain_leaves_no_trace(file: BookFile) -> None:
    book = WantedBook(file)
    await book.want(RED)
    await book.take_back("red")
    assert book.wanted == Wanted()


async def test_a_store_that_lost_the_book_is_given_it_back(file: BookFile) -> None:
    book, other = WantedBook(file), WantedBook(file)
    await book.want(RED)
    file.path.unlink()
    await book.refresh()
    await other.refresh()
    assert other.wanted.adapters == {"red": RED}


async def test_a_book_that_is_none_is_an_error_and_the_last_one_stands(file: BookFile) -> None:
    book = WantedBook(file)
    await book.want(RED)
    file.path.write_text('{"adapters": [1]}')
    with pytest.raises(ValueError, match="adapters"):
        await book.refresh()
    with pytest.raises(WantedUnavailable):
        await book.want(BLUE)
    assert book.wanted.adapters == {"red": RED}


class Contended:
    """A store that somebody else always changes first."""

    async def load(self, _: str) -> tuple[str, bytes] | None:
        return "1", b"{}"

    async def save(self, *_: object) -> str | None:
        return None


async def test_a_book_that_others_always_change_first_is_given_up() -> None:
    with pytest.raises(WantedUnavailable, match="by others"):
        await WantedBook(Contended()).want(RED)
