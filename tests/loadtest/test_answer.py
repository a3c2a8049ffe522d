import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.answer import Answer, Events, error_message, status_message
from loadtest.sample import Fault
from tests.loadtest.fake_server import DONE, USAGE, chunk, event

LINES = st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line and b"\r" not in line), min_size=1)


@given(st.lists(LINES, max_size=6), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_events_are_the_same_however_the_bytes_are_cut(
    events: list[list[bytes]], newline: bytes, data: st.DataObject
) -> None:
    stream = b"".join(b"".join(b"data: " + line + newline for line in event) + newline for event in events)
    parser, seen, place = Events(), [], 0
    while place < len(stream):
        step = data.draw(st.integers(1, len(stream) - place))
        seen += parser.feed(stream[place : place + step])
        place += step
    assert seen == [b"\n".join(event) for event in events]


def test_comments_and_other_fields_are_no_events() -> None:
    assert Events().feed(b": alive\n\nevent: error\nid: 4\ndata:x\n\n: why\n\n") == [b"x"]


def test_an_event_without_its_blank_line_is_held_back() -> None:
    parser = Events()
    assert parser.feed(b"data: x\n") == []
    assert parser.feed(b"\n") == [b"x"]


def test_a_stream_gives_first_token_gaps_text_and_usage() -> None:
    answer = Answer()
    answer.take(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), 1.0)
    answer.take(chunk("one"), 2.0)
    answer.take(chunk("two"), 2.5)
    answer.take(chunk("three", "stop"), 4.0)
    answer.take(event({"choices": [], "usage": USAGE}) + DONE, 5.0)
    answer.close()
    assert repr(answer) == "<Answer DONE 3 chunks>"
    assert answer.first_token_s == 2.0
    assert answer.gaps_s == [0.5, 1.5]
    assert "".join(answer.texts) == "onetwothree"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize(
    "delta",
    [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}],
)
def test_reasoning_and_tool_calls_are_output_too(delta: dict[str, object]) -> None:
    answer = Answer()
    answer.take(event({"choices": [{"delta": delta, "finish_reason": None}]}), 3.0)
    assert answer.first_token_s == 3.0


@pytest.mark.parametrize(
    ("stream", "fault", "words"),
    [
        (chunk("x"), Fault.CUT, "finish_reason"),
        (chunk("x") + DONE, Fault.CUT, "finish_reason"),
        (chunk("x", "stop"), Fault.CUT, "[DONE]"),
        (b"", Fault.CUT, "finish_reason"),
        (event({"error": {"message": "gone", "code": 502}}) + DONE, Fault.IN_BAND, "gone"),
        (event({"error": "gone"}), Fault.IN_BAND, "gone"),
        (event({"object": "error", "message": "gone"}), Fault.IN_BAND, "gone"),
        (chunk("x", "abort") + DONE, Fault.IN_BAND, "abort"),
        (b"data: {oops\n\n", Fault.UNREADABLE, "{oops"),
        (b"data: [1]\n\n", Fault.UNREADABLE, "[1]"),
        (b'data: {"choices":"x"}\n\n', Fault.UNREADABLE, "choices"),
        (b'data: {"object":"\xff"}\n\n', Fault.UNREADABLE, "object"),
    ],
)
def test_a_stream_that_is_not_whole_has_failed(stream: bytes, fault: Fault, words: str) -> None:
    answer = Answer()
    answer.take(stream, 1.0)
    answer.close()
    assert answer.failure is not None
    assert answer.failure.fault is fault
    assert words in answer.failure.message
    assert "FAILED" in repr(answer)


def test_nothing_after_the_end_mark_counts() -> None:
    answer = Answer()
    answer.take(chunk("x", "stop") + DONE + chunk("y"), 1.0)
    assert answer.num_chunks == 1


def test_a_whole_answer_has_no_token_times() -> None:
    answer = Answer()
    choice = {"message": {"content": "hi", "tool_calls": None}, "finish_reason": "stop"}
    answer.take_whole(json.dumps({"choices": [choice], "usage": None}).encode())
    answer.close()
    assert answer.failure is None
    assert (answer.texts, answer.first_token_s, answer.gaps_s) == (["hi"], None, [])


def test_error_bodies_of_every_shape_are_read() -> None:
    assert error_message({"error": {"message": "a"}}) == "a"
    assert error_message({"message": "a"}) == "a"
    assert error_message("a") == "a"
    assert status_message(b'{"error":"a"}') == "a"
    assert status_message(b"<html>") == "<html>"
    assert status_message(b"\xff") == "\N{REPLACEMENT CHARACTER}"
