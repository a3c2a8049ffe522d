import json
from typing import Any

import pytest

from engine.server.errors import ApiError
from engine.server.fields import decode
from engine.server.openai import ChatRequest, CompletionRequest
from tests.engine.server.bodies import CHAT, COMPLETION, chat


def refused(body: bytes, shape: type[ChatRequest | CompletionRequest] = ChatRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(body, shape)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("body", [b"", b"{bad", b"[1]", b"null", b'"\xff"', b"[" * 100_000, b'{"a": 1e999}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert "JSON" in str(refused(body))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"max_tokens": -4}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**63}, "seed"),
        ({"n": 0}, "n"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream_options": {"new": 1}}, "stream_options.new"),
        ({"priority": "high"}, "priority"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {"new": 1}}, "structured_outputs.new"),
        ({"guided_choice": []}, "guided_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ],
)
def test_a_wrong_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(json.dumps(CHAT | fields).encode())
    assert error.param == param
    assert param in str(error)


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_refused_by_name(field: str) -> None:
    error = refused(json.dumps({name: value for name, value in CHAT.items() if name != field}).encode())
    assert (error.param, str(error)) == (field, f"{field} is missing")


@pytest.mark.parametrize(
    "fields",
    [
        {"bad_words": ["x"]},
        {"allowed_token_ids": [1]},
        {"prompt_logprobs": 1},
        {"chat_template": "x"},
        {"use_beam_search": True},
        {"truncate_prompt_tokens": 5},
        {"length_penalty": 0.5},
        {"functions": [{"name": "f"}]},
        {"modalities": ["audio"]},
        {"never_heard_of": 1},
    ],
)
def test_what_the_engine_lacks_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    error = refused(json.dumps(CHAT | fields).encode())
    assert (error.param, error.code) == (name, "unsupported_parameter")
    chat(**{name: None})


def test_what_completions_lack_is_refused_by_name() -> None:
    assert refused(json.dumps(COMPLETION | {"suffix": "x"}).encode(), CompletionRequest).param == "suffix"


def test_values_that_ask_for_nothing_pass() -> None:
    chat(
        functions=[],
        modalities=["text"],
        length_penalty=1.0,
        bad_words=[],
        user="someone",
        metadata={"a": "b"},
        never_heard_of=False,
    )


def test_keys_of_objects_stand_for_token_ids() -> None:
    assert chat(logit_bias={"5": 3, "7": -100}).logit_bias == {5: 3.0, 7: -100.0}
