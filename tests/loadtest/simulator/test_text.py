"""Prompts as runs of equal tokens are the prompts that they stand for."""

from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.text import Ids, clipped, hashes, num_tokens, of_blocks, tokens
from pointsman.blockhash import block_hashes

texts = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 20)), max_size=8).map(tuple)


@given(texts, st.integers(1, 16), st.sampled_from([None, "adapter"]))
def test_hashes_are_those_of_the_tokens(
    text: tuple[tuple[int, int], ...], block_size: int, adapter: str | None
) -> None:
    assert list(hashes(text, block_size, adapter)) == block_hashes(tokens(text), block_size, adapter=adapter)


@given(texts, st.integers(0, 200))
def test_a_clipped_text_is_the_beginning(text: tuple[tuple[int, int], ...], most: int) -> None:
    assert tokens(clipped(text, most)) == tokens(text)[:most]


def test_equal_blocks_are_equal_tokens_and_the_rest_is_its_own() -> None:
    ids = Ids()
    one = of_blocks(ids, ["a", "b"], 4, 10, "row 1")
    other = of_blocks(ids, ["a", "c"], 4, 6, "row 2")
    assert num_tokens(one) == 10
    assert num_tokens(other) == 6
    assert tokens(one)[:4] == tokens(other)[:4]
    assert not set(tokens(one)[4:]) & set(tokens(other)[4:])
