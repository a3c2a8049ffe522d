from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.seen import SeenTokens

TOKENS = st.lists(st.integers(0, 300), max_size=200)


@given(prompt=TOKENS, output=TOKENS, cuts=st.lists(st.integers(0, 200)))
def test_counts_are_those_of_the_output_however_it_grew(prompt: list[int], output: list[int], cuts: list[int]) -> None:
    seen = SeenTokens(prompt)
    for length in [*sorted(cuts), len(output)]:
        seen.follow(prompt + output[:length])
    counts = dict(zip(seen.token_ids.tolist(), seen.counts.tolist(), strict=True))
    assert counts == {token: Counter(output)[token] for token in prompt + output}


def test_its_repr_tells_how_many() -> None:
    seen = SeenTokens([5, 5])
    seen.follow([5, 5, 6])
    assert repr(seen) == "<SeenTokens 2 of 3 tokens>"
