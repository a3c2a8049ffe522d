import json
from typing import Any

import pytest

from engine.server.errors import ApiError
from engine.server.openai import ChatRequest, CompletionRequest, check_chat, decode, prompt_of, sampling_of

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}
EOS = frozenset({2})


def chat(**fields: Any) -> ChatRequest:
    return decode(json.dumps(CHAT | fields).encode(), ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return decode(json.dumps(COMPLETION | fields).encode(), CompletionRequest)


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
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"priority": "high"}, "priority"),
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
        {"n": 2},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {}},
        {"guided_regex": ""},
        {"logit_bias": {"5": 1}},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -1},
        {"repetition_penalty": 1.1},
        {"kv_transfer_params": {}},
        {"adapter": "a"},
        {"never_heard_of": 1},
    ],
)
def test_what_the_engine_lacks_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    error = refused(json.dumps(CHAT | fields).encode())
    assert (error.param, error.code) == (name, "unsupported_parameter")
    chat(**{name: None})


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}, {"best_of": 2}, {"logprobs": 0}])
def test_what_completions_lack_is_refused_by_name(fields: dict[str, Any]) -> None:
    assert refused(json.dumps(COMPLETION | fields).encode(), CompletionRequest).param == next(iter(fields))


def test_values_that_ask_for_nothing_pass() -> None:
    chat(
        n=1,
        logprobs=False,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        logit_bias={},
        frequency_penalty=0.0,
        presence_penalty=0,
        repetition_penalty=1.0,
        user="someone",
        metadata={"a": "b"},
        never_heard_of=False,
    )


def test_the_defaults_are_those_of_openai() -> None:
    sampling = sampling_of(chat(), 10, 100, EOS)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (90, 1.0, 1.0, None)
    assert sampling.eos_token_ids == EOS
    assert sampling_of(completion(), 10, 100, EOS).max_tokens == 16
    assert sampling_of(completion(), 95, 100, EOS).max_tokens == 5


def test_what_the_client_asks_for_is_taken() -> None:
    asked = chat(
        max_tokens=50,
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        min_tokens=3,
        seed=-5,
        stop="x",
        stop_token_ids=[9, 9],
        ignore_eos=True,
    )
    sampling = sampling_of(asked, 10, 100, EOS)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 40)
    assert (sampling.min_p, sampling.min_tokens, sampling.seed, sampling.stop) == (0.1, 3, -5, ("x",))
    assert (sampling.stop_token_ids, sampling.eos_token_ids) == (frozenset({9}), frozenset())


@pytest.mark.parametrize("top_k", [0, -1])
def test_a_top_k_of_nothing_is_the_whole_vocabulary(top_k: int) -> None:
    assert sampling_of(chat(top_k=top_k), 10, 100, EOS).top_k is None


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert sampling_of(chat(temperature=1e-9), 10, 100, EOS).temperature == 0.0


def test_without_a_seed_each_request_gets_its_own() -> None:
    assert sampling_of(chat(), 10, 100, EOS).seed != sampling_of(chat(), 10, 100, EOS).seed


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(100, None), (500, None), (90, 11)])
def test_what_does_not_fit_the_context_is_refused(num_prompt_tokens: int, max_tokens: int | None) -> None:
    with pytest.raises(ApiError, match="the context is 100 tokens") as caught:
        sampling_of(chat(max_tokens=max_tokens), num_prompt_tokens, 100, EOS)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param"), [({"stop": ["a", ""]}, "stop"), ({"min_tokens": 9, "max_tokens": 8}, "min_tokens")]
)
def test_values_that_contradict_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        sampling_of(chat(**fields), 10, 100, EOS)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "meant"), [("a", "a"), (["a"], "a"), ([5, 6], [5, 6]), ([[5, 6]], [5, 6]), ([[]], []), ([], [])]
)
def test_a_completion_takes_one_prompt_in_any_of_its_forms(prompt: Any, meant: str | list[int]) -> None:
    assert prompt_of(completion(prompt=prompt)) == meant


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [1, "a"], [1.5], [-1], [None], [[["a"]]]])
def test_other_prompts_are_refused_by_name(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        prompt_of(completion(prompt=prompt))
    assert caught.value.param == "prompt"


def test_a_message_without_a_role_is_refused_by_place() -> None:
    with pytest.raises(ApiError) as caught:
        check_chat([{"role": "user", "content": "a"}, {"content": "b"}], None)
    assert caught.value.param == "messages[1].role"


def test_the_template_cannot_be_given_what_the_request_decides() -> None:
    check_chat([], {"enable_thinking": True})
    with pytest.raises(ApiError, match="must not set messages"):
        check_chat([], {"messages": []})
