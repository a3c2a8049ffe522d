import json

import msgspec
import pytest

from engine.sequence import FinishReason, Output
from engine.server.answers import Answer, ChatAnswer, CompletionAnswer, usage

CHAT = ChatAnswer("chatcmpl-1", "m", 1_700_000_000)
COMPLETION = CompletionAnswer("cmpl-1", "m", 1_700_000_000)
PIECE = Output("r", (5,), 'so "far"\n', num_cached_tokens=16, num_output_tokens=3)
LAST = Output("r", (6,), ".", 16, 4, finish_reason=FinishReason.STOP, stop_reason="END")


def body(event: bytes) -> dict[str, object]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    decoded: dict[str, object] = json.loads(event.removeprefix(b"data: "))
    return decoded


def test_a_chat_opens_with_its_role() -> None:
    assert body(CHAT.opening()) == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ],
    }
    assert COMPLETION.opening() == b""


def test_pieces_carry_text_and_the_last_one_the_reason() -> None:
    piece, last = (body(CHAT.delta(output))["choices"] for output in (PIECE, LAST))
    assert piece == [{"index": 0, "delta": {"content": 'so "far"\n'}, "logprobs": None, "finish_reason": None}]
    assert last == [
        {
            "index": 0,
            "delta": {"content": "."},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "END",
        }
    ]
    assert body(COMPLETION.delta(PIECE))["choices"] == [
        {"index": 0, "text": 'so "far"\n', "logprobs": None, "finish_reason": None}
    ]


@pytest.mark.parametrize("answer", [CHAT, COMPLETION])
def test_the_usage_comes_without_choices(answer: Answer) -> None:
    closing = body(answer.closing(usage(20, LAST)))
    assert closing["choices"] == []
    assert closing["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 4,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


def test_a_whole_answer_holds_all_of_it() -> None:
    chat = msgspec.json.decode(CHAT.whole("text", LAST, usage(20, LAST)))
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "text"}
    completion = msgspec.json.decode(COMPLETION.whole("text", LAST, usage(20, LAST)))
    assert completion["object"] == "text_completion"
    assert completion["choices"][0]["text"] == "text"
    assert {chat["choices"][0]["finish_reason"], completion["choices"][0]["finish_reason"]} == {"stop"}
