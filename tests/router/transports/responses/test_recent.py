"""What a connection remembers of its conversations."""

from hypothesis import given
from hypothesis import strategies as st

from router.transports.responses.recent import Recent


def said(size: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "x" * size}]


def test_a_conversation_is_found_by_its_last_response() -> None:
    recent = Recent(1000)
    recent.keep("a", said(1))
    assert (recent.find("a"), recent.find("b")) == (said(1), None)


def test_one_that_is_too_long_is_not_remembered() -> None:
    recent = Recent(1000)
    recent.keep("a", said(2000))
    assert (recent.find("a"), recent.num_bytes) == (None, 0)


@given(st.lists(st.integers(0, 60), max_size=40))
def test_they_are_bounded_in_number_and_bytes_and_the_latest_stays(sizes: list[int]) -> None:
    recent = Recent(max_bytes=200, most=5)
    for number, size in enumerate(sizes):
        recent.keep(str(number), said(size))
        assert recent.num_bytes == sum(size for _, size in recent._kept.values()) <= 200
        assert len(recent._kept) <= 5
        assert recent.find(str(number)) == said(size)
