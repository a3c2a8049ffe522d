import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router import openai
from router.core import Surface, Usage
from router.errors import ContextTooLong, InvalidRequest, Overloaded

FIXTURES = Path("tests/fixtures/vllm-0.32-cpu")
CHAT_STREAM = (FIXTURES / "chat_stream.sse").read_bytes()

HELLO = [{"role": "user", "content": "hello"}]
SCALARS = st.none() | st.booleans() | st.integers(-5, 2**40) | st.sampled_from([0.5, -1e300]) | st.text(max_size=4)
JSON_VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=2), SCALARS, max_size=2)


def chat_body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **fields}).encode()


def completion_body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "hello", **fields}).encode()


def refusal(body: bytes, surface: Surface = Surface.CHAT) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        openai.peek(body, surface)
    return caught.value


def test_peek_gives_the_fields_that_routing_needs() -> None:
    body = chat_body(
        stream=True, stream_options={"include_usage": True}, max_tokens=5, cache_salt="s", priority=-2, unknown={"x": 1}
    )
    fields = openai.peek(body, Surface.CHAT)
    assert (fields.model, fields.messages, fields.stream) == ("m", HELLO, True)
    assert (fields.max_tokens, fields.cache_salt, fields.priority) == (5, "s", -2)
    assert fields.stream_options == openai.StreamOptions(include_usage=True)


def test_absent_and_null_are_the_same() -> None:
    named = dict.fromkeys(("stream", "stream_options", "max_tokens", "tools", "cache_salt", "priority"))
    assert openai.peek(chat_body(**named), Surface.CHAT) == openai.peek(chat_body(), Surface.CHAT)


def test_template_options_are_what_the_template_is_rendered_with() -> None:
    tool = {"type": "function"}
    body = chat_body(tools=[tool], chat_template_kwargs={"thinking": False}, add_generation_prompt=False)
    options = openai.peek(body, Surface.CHAT).template_options
    assert options == {"thinking": False, "tools": [tool], "add_generation_prompt": False}
    assert openai.peek(chat_body(), Surface.CHAT).template_options == {}


NOT_JSON = [b"", b"{", b"nope", b'{"model": "m"', b'{"model":"m",}', b"\xff\xfe", b'{"model":"\xff"}', b'{"model":NaN}']


@pytest.mark.parametrize("body", NOT_JSON)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    error = refusal(body)
    assert error.status == 400
    assert error.message.startswith("The body is not valid JSON")


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"text"', b"true"])
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    assert refusal(body).message.startswith("The body must be a JSON object")


WRONG_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"model": 1}, "model"),
    ({"model": None}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"tools": {}}, "tools"),
    ({"documents": "x"}, "documents"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"add_generation_prompt": "x"}, "add_generation_prompt"),
    ({"cache_salt": 1}, "cache_salt"),
    ({"priority": "high"}, "priority"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [*HELLO, 5]}, "messages[1]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": 5, "content": "x"}]}, "messages[1].role"),
    ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG_FIELDS)
def test_a_wrong_field_of_a_chat_is_named(fields: dict[str, object], param: str) -> None:
    error = refusal(chat_body(**fields))
    assert (error.status, error.param) == (400, param)
    assert f"`{param}`" in error.message


def test_a_missing_field_is_named() -> None:
    assert refusal(b"{}").param == "model"
    assert refusal(b'{"model": "m"}').param == "messages"
    assert refusal(b'{"model": "m"}', Surface.COMPLETIONS).param == "prompt"


@pytest.mark.parametrize("content", ["x", "", None, [{"type": "text", "text": "x"}]])
def test_a_message_has_text_parts_or_nothing(content: object) -> None:
    messages = [{"role": "assistant", "content": content, "tool_calls": []}]
    assert openai.peek(chat_body(messages=messages), Surface.CHAT).messages == messages


@pytest.mark.parametrize("prompt", ["x", "", ["x", "y"], [1, 2], [[1, 2], [3]], [0, 2**32 - 1]])
def test_a_prompt_is_text_or_token_ids_or_a_list_of_either(prompt: object) -> None:
    assert openai.peek(completion_body(prompt=prompt), Surface.COMPLETIONS).prompt == prompt


@pytest.mark.parametrize(
    "prompt", [None, 5, {}, True, [], [[]], [None], [1, "x"], [-1], [2**32], [1.0], [True], [["x"]], [[1], []]]
)
def test_any_other_prompt_is_refused_by_name(prompt: object) -> None:
    assert refusal(completion_body(prompt=prompt), Surface.COMPLETIONS).param == "prompt"


def test_a_chats_prompt_and_a_completions_messages_are_none_of_our_business() -> None:
    assert openai.peek(chat_body(prompt=[]), Surface.CHAT).messages == HELLO
    assert openai.peek(completion_body(messages=[]), Surface.COMPLETIONS).prompt == "hello"


@pytest.mark.parametrize("depth", [2_000, 200_000])
@pytest.mark.parametrize("field", ["unknown", "tools", "messages"])
def test_json_nested_without_end_is_refused(field: str, depth: int) -> None:
    body = chat_body().replace(b"}]}", b'}],"%s":%s%s}' % (field.encode(), b"[" * depth, b"]" * depth))
    assert refusal(body).status == 400


def test_a_large_body_is_only_another_body() -> None:
    messages = [{"role": "user", "content": "x" * 1000} for _ in range(2000)]
    assert len(openai.peek(chat_body(messages=messages), Surface.CHAT).messages or ()) == 2000


@settings(max_examples=100)
@given(st.binary(max_size=40) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_body_does_more_than_be_refused(body: bytes) -> None:
    for surface in Surface:
        with pytest.raises(InvalidRequest):
            openai.peek(body, surface)


@settings(max_examples=100)
@given(st.fixed_dictionaries({"model": JSON_VALUES, "messages": JSON_VALUES, "max_tokens": JSON_VALUES}))
def test_odd_values_are_refused_by_a_name_that_was_sent(fields: dict[str, Any]) -> None:
    error = refusal(json.dumps(fields).encode())
    assert (error.param or "").split("[")[0] in fields


# edits of a body


def test_a_field_is_cut_out_and_the_rest_keeps_its_very_bytes() -> None:
    body = b'{"a": 1.50, "priority" : 3, "b" : [1,  2e0], "c":"\\u00e9\\ud83d\\ude00", "d":{"priority" :1}}'
    expected = b'{"a":1.50,"b":[1,  2e0],"c":"\\u00e9\\ud83d\\ude00","d":{"priority" :1}}'
    assert openai.without_field(body, "priority") == expected


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4), JSON_VALUES)
def test_what_is_left_says_the_same(fields: dict[str, Any], priority: object) -> None:
    fields.pop("priority", None)
    body = json.dumps({"priority": priority, **fields}).encode()
    assert json.loads(openai.without_field(body, "priority")) == fields


# errors


def test_an_error_has_openais_body() -> None:
    error = ContextTooLong("Too long.", param="messages")
    assert json.loads(openai.error_body(error)) == {
        "error": {
            "message": "Too long.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }


@pytest.mark.parametrize(
    ("wait_s", "header"), [(None, None), (0.0, "1"), (0.4, "1"), (2.4, "2"), (60.0, "60"), (3600.0, "60")]
)
def test_retry_after_is_whole_seconds_from_one_to_sixty(wait_s: float | None, header: str | None) -> None:
    assert openai.retry_after(Overloaded("Full.", retry_after_s=wait_s)) == header


def normalised(status: int, body: object) -> dict[str, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = json.loads(openai.normalised_error(status, raw))
    assert set(answer) == {"error"}
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def test_an_openai_error_keeps_its_words() -> None:
    error = {"message": "No.", "type": "t", "param": "p", "code": "c"}
    assert normalised(400, {"error": error}) == error


def test_vllms_errors_keep_their_words_and_get_a_code_of_text() -> None:
    error = normalised(404, (FIXTURES / "error_404.json").read_bytes())
    assert error["message"] == "The model `nope` does not exist. Valid aliases: smollm2."
    assert (error["type"], error["param"], error["code"]) == ("NotFoundError", "model", "404")
    assert normalised(400, (FIXTURES / "error_400.json").read_bytes())["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"object": "error", "message": "Old vLLM.", "code": 400}, "Old vLLM."),
        ({"error": "Only a text."}, "Only a text."),
        ({"error": None, "message": "Beside it."}, "Beside it."),
        ({"detail": "FastAPI."}, "FastAPI."),
        ({"msg": "Another."}, "Another."),
        ("A text.", "A text."),
        (b"<html>Bad gateway</html>\n", "<html>Bad gateway</html>"),
        (b"", "The replica answered 500."),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ({}, "The replica answered 500."),
        ([], "The replica answered 500."),
        ({"error": {}}, "The replica answered 500."),
    ],
)
def test_other_shapes_become_openais(body: object, message: str) -> None:
    assert normalised(500, body)["message"] == message


def test_fastapis_list_of_faults_stays_readable() -> None:
    faults = [{"loc": ["body", "max_tokens"], "msg": "not an integer"}]
    assert json.loads(normalised(422, {"detail": faults})["message"]) == faults


@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (500, "upstream_error")])
def test_an_error_without_a_type_gets_one_by_its_status(status: int, kind: str) -> None:
    assert normalised(status, {"message": "x"})["type"] == kind


def test_a_page_instead_of_an_error_is_cut() -> None:
    assert len(normalised(502, b"x" * 100_000)["message"]) == 2000


@given(st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps({"error": value}).encode()))
@example(b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b"[" * 100_000)
def test_whatever_a_replica_answers_becomes_an_error(body: bytes) -> None:
    normalised(500, body)


def test_a_failed_stream_ends_with_the_error_and_done() -> None:
    events = openai.sse_error(Overloaded("Full.")).split(b"\n\n")
    assert json.loads(events[0].removeprefix(b"data: "))["error"]["code"] == "queue_full"
    assert events[1:] == [b"data: [DONE]", b""]


def test_a_comment_is_an_event_of_its_own() -> None:
    assert openai.sse_comment("waiting") == b": waiting\n\n"


# usage


def test_usage_is_found_in_vllms_stream() -> None:
    assert openai.find_usage(CHAT_STREAM) == Usage(prompt_tokens=37, output_tokens=8)


def test_usage_is_found_in_a_json_answer_with_its_cached_tokens() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    body = json.dumps({"choices": [], "usage": usage}).encode()
    assert openai.find_usage(body) == Usage(prompt_tokens=9, cached_tokens=4, output_tokens=3)


def test_the_last_of_several_usages_counts() -> None:
    events = b"".join(b'data: {"usage": {"completion_tokens": %d}}\n\n' % i for i in range(3))
    assert openai.find_usage(events) == Usage(output_tokens=2)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b'{"usage": null}',
        b'{"usage": {"prompt_tok',
        b'{"content": "\\"usage\\": {\\"prompt_tokens\\": 1}"}',
        b'{"usage": {"a": ' + b"[" * 100_000,
    ],
)
def test_there_is_no_usage_in(payload: bytes) -> None:
    assert openai.find_usage(payload) is None


@pytest.mark.parametrize("value", ["9", 9.5, True, None, [9]])
def test_a_count_that_is_no_number_is_not_known(value: object) -> None:
    body = json.dumps({"usage": {"prompt_tokens": value, "prompt_tokens_details": [value]}}).encode()
    assert openai.find_usage(body) == Usage()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a":1.50}', b'{"a":1.50,"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":null}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":{"x":1,"include_usage":false}}', b'{"stream_options":{"x":1,"include_usage":true}}'),
    ],
)
def test_a_stream_is_asked_for_its_usage(before: bytes, after: bytes) -> None:
    assert openai.with_usage(before) == after


def test_only_the_event_that_tells_nothing_but_the_usage_is_hidden() -> None:
    text = b'data: {"choices":[{"delta":{"content":"usage \\"usage\\""}}],"usage":null}\n\n'
    comment, odd, done = b': "usage"\n\n', b'data: not JSON, "usage"\r\n\r\n', b"data: [DONE]\n\n"
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
    rest = b'data: {"choices":[],"usage"'
    assert openai.without_usage(text + usage + comment + odd + done) == text + comment + odd + done
    assert openai.without_usage(usage) == b""
    assert openai.without_usage(text + rest) == text + rest, "the beginning of a very long event"
    assert openai.without_usage(done) is done
