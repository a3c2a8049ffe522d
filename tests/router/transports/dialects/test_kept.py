"""Responses kept in memory: by owner, by age, by bytes."""

from hypothesis import given
from hypothesis import strategies as st

from router.transports.dialects.kept import KeptHere
from tests.router.nouns import FakeClock


async def test_an_owner_sees_only_what_is_theirs() -> None:
    kept = KeptHere(FakeClock())
    await kept.put("a", "r", b"1")
    assert (await kept.get("a", "r"), await kept.get("b", "r")) == (b"1", None)
    assert (await kept.delete("b", "r"), await kept.delete("a", "r"), await kept.delete("a", "r")) == (
        False,
        True,
        False,
    )


async def test_what_is_too_old_is_gone() -> None:
    clock = FakeClock()
    kept = KeptHere(clock, max_age_s=10.0)
    await kept.put("a", "r", b"1")
    clock.now += 11.0
    assert await kept.get("a", "r") is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=50))
async def test_bytes_are_bounded_and_the_newest_stay(puts: list[tuple[int, int]]) -> None:
    kept, newest = KeptHere(FakeClock(), max_bytes=100), ("", b"")
    for number, size in puts:
        newest = (str(number), b"x" * size)
        await kept.put("a", *newest)
        assert kept.num_bytes == sum(len(record) for _, record in kept._records.values()) <= 100
    if puts:
        assert await kept.get("a", newest[0]) == newest[1]
