"""OpenAI's answers taken apart."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadAnswer
from router.transports.chunks import Events, decode

STREAM = b': ping\n\ndata: {"a":1}\n\nevent: x\r\ndata: {\r\ndata: }\r\n\r\nid: 3\n\ndata:[DONE]\n\n'
FOUND = [b'{"a":1}', b"{\n}", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    events = Events()
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(places)]
    assert [found for piece in pieces for found in events.feed(piece)] == FOUND


def test_comments_are_told_apart() -> None:
    assert Events().comments(b": one: 1\n\ndata: : no\n\n:two\n\n") == ["one: 1", "two"]


def test_unknown_fields_are_skipped_and_missing_ones_empty() -> None:
    chunk = decode(b'{"choices":[{"delta":{"content":"a","x":[1]},"y":2}],"z":null}')
    assert chunk.choices[0].delta is not None
    assert (chunk.choices[0].delta.content, chunk.usage, chunk.failure) == ("a", None, None)


@pytest.mark.parametrize(
    ("payload", "message", "code"),
    [
        (b'{"error":{"message":"bad","code":"c","type":"t","param":null}}', "bad", "c"),
        (b'{"error":"bad"}', "bad", None),
        (b'{"error":{"message":"bad","code":400}}', "{'message': 'bad', 'code': 400}", None),
    ],
)
def test_an_error_is_found_in_any_shape(payload: bytes, message: str, code: str | None) -> None:
    failure = decode(payload).failure
    assert failure is not None
    assert (failure.message, failure.code) == (message, code)


@pytest.mark.parametrize("payload", [b"", b"[1]", b'{"choices":3}', b"\xff", b"[" * 100_000])
def test_what_is_no_answer_is_a_bad_answer(payload: bytes) -> None:
    with pytest.raises(BadAnswer):
        decode(payload)
