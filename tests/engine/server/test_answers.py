import json
from typing import Any

import msgspec
import tokenizers

from engine.sampling import TokenLogprobs
from engine.sequence import FinishReason, Output
from engine.server.answers import ChatChoice, CompletionChoice, Head, usage
from engine.server.logprobs import Spelling
from engine.server.tools import ToolFormat, ToolReader
from engine.tokenizer import IncrementalDecoder, TokenBytes

CHAT = Head("chatcmpl-1", "chat.completion", "m", 1_700_000_000)
COMPLETION = Head("cmpl-1", "text_completion", "m", 1_700_000_000)
PIECE = Output("r", (5,), 'so "far"\n', num_cached_tokens=16, num_output_tokens=3)
LAST = Output("r", (6,), ".", 16, 4, finish_reason=FinishReason.STOP, stop_reason="END")
OPENED = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


def spelling() -> Spelling:
    """Token 1 is "a", 2 is "bc", 3 is half a character."""
    spelled = TokenBytes(tokenizers.Tokenizer(tokenizers.models.BPE()), str.encode, {1: b"a", 2: b"bc", 3: b"\xe2"})
    return Spelling(spelled.__getitem__, IncrementalDecoder(frozenset(), spelled))


def test_an_event_is_one_line_of_json() -> None:
    event = CHAT.event([OPENED])
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [OPENED],
    }
    assert json.loads(COMPLETION.event([]).removeprefix(b"data: "))["object"] == "text_completion"


def test_a_chat_opens_with_its_role_and_ends_with_the_reason() -> None:
    choice = ChatChoice(0)
    opened, piece = choice.deltas(PIECE)
    assert opened == OPENED
    assert piece == {"index": 0, "delta": {"content": 'so "far"\n'}, "logprobs": None, "finish_reason": None}
    assert choice.deltas(Output("r", (7,), "", 16, 4)) == []
    ending = {"logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    assert choice.deltas(LAST) == [{"index": 0, "delta": {"content": "."}, **ending}]


def test_a_completion_carries_text_and_ends_with_the_reason() -> None:
    choice = CompletionChoice(2)
    assert choice.deltas(PIECE) == [{"index": 2, "text": 'so "far"\n', "logprobs": None, "finish_reason": None}]
    assert choice.deltas(LAST)[0]["finish_reason"] == "stop"


def test_a_whole_answer_holds_all_of_it() -> None:
    chat, completion = ChatChoice(0), CompletionChoice(0)
    for output in (PIECE, LAST):
        chat.take(output)
        completion.take(output)
    assert chat.whole()["message"] == {"role": "assistant", "content": 'so "far"\n.'}
    assert completion.whole()["text"] == 'so "far"\n.'
    body = msgspec.json.decode(CHAT.whole([chat.whole()], usage([20], [chat])))
    assert (body["object"], body["choices"][0]["finish_reason"]) == ("chat.completion", "stop")


def test_usage_counts_each_prompt_once_and_every_choice() -> None:
    choices = [ChatChoice(index) for index in range(4)]
    for choice, cached in zip(choices, (16, 20, 0, 30), strict=True):
        choice.take(Output("r", (6,), ".", cached, 4, finish_reason=FinishReason.LENGTH))
    assert usage([20, 30], choices) == {
        "prompt_tokens": 50,
        "completion_tokens": 16,
        "total_tokens": 66,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


CALLS = ['Sure.\n<tool_call>{"name": "f", "argu', 'ments": {"x": 1}}</tool_call>']


def called(choice: ChatChoice) -> list[Output]:
    last = Output("r", (3,), "", 0, 3, finish_reason=FinishReason.STOP)
    return [Output("r", (1,), CALLS[0], 0, 1), Output("r", (2,), CALLS[1], 0, 2), last]


def reader() -> ToolReader:
    return ToolReader(ToolFormat.HERMES, frozenset({"f"}))


def test_calls_are_told_from_text_and_are_the_reason() -> None:
    choice = ChatChoice(0, tools=reader())
    for output in called(choice):
        choice.take(output)
    whole = choice.whole()
    (call,) = whole["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "f", "arguments": '{"x": 1}'})
    assert (whole["message"]["content"], whole["finish_reason"]) == ("Sure.", "tool_calls")


def test_calls_are_streamed_by_index() -> None:
    choice = ChatChoice(0, tools=reader())
    deltas = [delta["delta"] for output in called(choice) for delta in choice.deltas(output)]
    assert deltas[1] == {"content": "Sure.", "tool_calls": [deltas[1]["tool_calls"][0]]}
    assert deltas[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert deltas[2] == {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": 1}'}}]}


def test_an_answer_of_calls_alone_has_no_content() -> None:
    choice = ChatChoice(0, tools=reader())
    choice.take(Output("r", (1,), CALLS[0].removeprefix("Sure.") + CALLS[1], 0, 1, finish_reason=FinishReason.STOP))
    assert choice.whole()["message"]["content"] is None


def told(token_id: int, logprob: float = -0.5, top: tuple[tuple[int, float], ...] = ()) -> TokenLogprobs:
    return TokenLogprobs(token_id, logprob, top)


def test_logprobs_of_a_chat_come_with_their_tokens_also_while_text_is_held_back() -> None:
    choice = ChatChoice(0, spelling())
    (_, delta) = choice.deltas(Output("r", (3,), "", 0, 1, logprobs=(told(3, top=((1, -0.1), (3, -0.5))),)))
    assert delta["logprobs"]["content"] == [
        {
            "token": "\N{REPLACEMENT CHARACTER}",
            "logprob": -0.5,
            "bytes": [0xE2],
            "top_logprobs": [
                {"token": "a", "logprob": -0.1, "bytes": [97]},
                {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -0.5, "bytes": [0xE2]},
            ],
        }
    ]


def test_logprobs_of_a_completion_are_columns_over_prompt_and_output() -> None:
    choice = CompletionChoice(0, spelling(), echo="abc", prompt_ids=(1, 2))
    first = Output("r", (2,), "bc", 0, 1, logprobs=(told(2, -0.25, ((1, -0.125),)),), prompt_logprobs=(told(2),))
    (delta,) = choice.deltas(first)
    assert delta["text"] == "abcbc"
    assert delta["logprobs"] == {
        "tokens": ["a", "bc", "bc"],
        "token_logprobs": [None, -0.5, -0.25],
        "top_logprobs": [None, {"bc": -0.5}, {"a": -0.125, "bc": -0.25}],
        "text_offset": [0, 1, 3],
    }
    last = Output("r", (3,), "", 0, 2, finish_reason=FinishReason.LENGTH, logprobs=(told(3, float("-inf")),))
    columns: dict[str, list[Any]] = choice.deltas(last)[0]["logprobs"]
    assert (columns["tokens"], columns["token_logprobs"], columns["text_offset"]) == (["bytes:\\xe2"], [-9999.0], [5])


def test_an_echo_alone_shows_nothing_of_the_token_that_it_took() -> None:
    choice = CompletionChoice(0, spelling(), echo="abc", prompt_ids=(1, 2), is_echo_only=True)
    choice.take(Output("r", (2,), "bc", 0, 1, FinishReason.LENGTH, logprobs=(told(2),), prompt_logprobs=(told(2),)))
    whole = choice.whole()
    assert (whole["text"], whole["logprobs"]["tokens"], choice.num_output_tokens) == ("abc", ["a", "bc"], 0)
