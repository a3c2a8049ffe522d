import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import openai
from router.core import Usage
from router.openai import EventStream

CHAT_STREAM = Path("tests/fixtures/vllm-0.32-cpu/chat_stream.sse").read_bytes()


def fed(stream: EventStream, pieces: list[bytes]) -> list[bytes]:
    return [out for piece in pieces if (out := stream.feed(piece))]


def split_at(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    return [whole[a:b] for a, b in pairwise(places)]


def test_whole_events_pass_and_a_tail_is_held() -> None:
    stream = EventStream()
    assert stream.feed(b"data: 1\n\ndata: 2\n\ndata: 3") == b"data: 1\n\ndata: 2\n\n"
    assert stream.feed(b"\n") == b""
    assert stream.feed(b"\ndata: 4\r\n\r\nda") == b"data: 3\n\ndata: 4\r\n\r\n"


def test_the_fixture_passes_unchanged_with_its_end_and_its_usage() -> None:
    stream = EventStream()
    assert stream.feed(CHAT_STREAM) == CHAT_STREAM
    assert stream.is_done
    assert stream.usage == Usage(prompt_tokens=37, output_tokens=8)


EVENTS = st.lists(
    st.sampled_from(
        [
            b"data: x\n\n",
            b'data: {"usage": {"prompt_tokens": 3}}\n\n',
            b"data: crlf\r\n\r\n",
            b": comment\n\n",
            b"event: e\ndata: 1\ndata: 2\n\n",
            b"data: said [DONE]\n\n",
            b"data: [DONE] he said\n\n",
            b"data: x data: [DONE]\n\n",
            b"data: long " + b"x" * 70_000 + b"\n\n",
            b"data: long " + b"x" * 70_000 + b"data: [DONE]\n\n",
            b"data: [DONE]\n\n",
            b"data:[DONE]\r\n\r\n",
        ]
    ),
    max_size=8,
)


def is_done_event(event: bytes) -> bool:
    return event.strip() in (b"data: [DONE]", b"data:[DONE]")


@settings(max_examples=150)
@given(EVENTS, st.lists(st.integers(0, 10**6), max_size=12), st.binary(max_size=30).filter(lambda b: b"\n" not in b))
def test_any_split_into_reads_gives_the_same_events(events: list[bytes], cuts: list[int], tail: bytes) -> None:
    whole, stream = b"".join(events), EventStream()
    out = fed(stream, split_at(whole + tail, cuts))
    assert b"".join(out) == whole
    assert stream.is_done == any(map(is_done_event, events))
    assert (stream.usage is not None) == any(b"usage" in event for event in events)
    if not any(len(event) > 60_000 for event in events):
        assert all(piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in out)


@pytest.mark.parametrize("seed", range(5))
def test_single_bytes_give_the_same_events(seed: int) -> None:
    events = [b"data: 1\n\n", b"data: 2\r\n\r\n", b": c\n\n", b"data: [DONE]\n\n"]
    random.Random(seed).shuffle(events)
    whole, stream = b"".join(events), EventStream()
    assert fed(stream, [whole[i : i + 1] for i in range(len(whole))]) == events
    assert stream.is_done


@settings(max_examples=50)
@given(st.lists(st.integers(0, 100_000).map(lambda n: b"x" * n) | st.just(b"\n\n"), max_size=10))
def test_at_most_64_kib_are_held(pieces: list[bytes]) -> None:
    stream, num_in, num_out = EventStream(), 0, 0
    for piece in pieces:
        num_in += len(piece)
        num_out += len(stream.feed(piece))
        assert num_in - num_out <= openai.MAX_HELD_BYTES
