"""Which bodies are asked for, and which field a refusal names."""

import json
from array import array
from typing import Any

import msgspec
import pytest

from router.core import Surface
from router.errors import InvalidRequest, UpstreamStatus
from router.upstream.grpc.asks import Body, Chat, body_of, prompts_of

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Body:
    return body_of(Surface.CHAT, msgspec.json.encode({"model": "m", "messages": MESSAGES, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": 1}, "service_tier": "auto", "store": False},
        {"logprobs": False, "top_logprobs": None, "n": 1, "best_of": 1, "response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"seed": -(2**63), "logit_bias": {"5": -100}, "stop": "x", "top_k": -1},
    ],
)
def test_what_asks_for_nothing_or_can_be_had_passes(fields: dict[str, Any]) -> None:
    assert isinstance(chat(**fields), Chat)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 2),
        ("tools", [{"type": "function"}]),
        ("echo", True),
        ("prompt_logprobs", 0),
        ("anything_new", 1),
        ("skip_special_tokens", False),
    ],
)
def test_what_no_contract_has_is_refused_by_name_and_may_be_tried_elsewhere(name: str, value: object) -> None:
    with pytest.raises(UpstreamStatus) as caught:
        chat(**{name: value})
    error = json.loads(caught.value.body)["error"]
    assert (caught.value.status, error["param"], error["code"]) == (400, name, "unsupported_parameter")
    assert (caught.value.retryable, caught.value.blames_replica) == (True, False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [""]}, "stop[0]"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"seed": 2**63}, "seed"),
        ({"response_format": {"type": "poem"}}, "response_format.type"),
    ],
)
def test_what_is_wrong_is_refused_by_name_for_good(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_zero_is_not_false() -> None:
    with pytest.raises(UpstreamStatus):
        body_of(Surface.COMPLETIONS, b'{"model": "m", "prompt": "a", "logprobs": 0}')


def test_a_chat_has_the_newer_of_its_two_limits() -> None:
    asked = chat(max_tokens=5, max_completion_tokens=7, stop=["a", "b"])
    assert isinstance(asked, Chat)
    assert (asked.most_tokens, asked.stops) == (7, ("a", "b"))


def test_template_options_are_what_the_router_rendered_with() -> None:
    asked = chat(chat_template_kwargs={"thinking": True}, add_generation_prompt=False, documents=[{"a": "b"}])
    assert isinstance(asked, Chat)
    assert asked.template_options == {"thinking": True, "add_generation_prompt": False, "documents": [{"a": "b"}]}


def test_prompts_are_texts_or_tokens_or_a_list_of_either() -> None:
    assert prompts_of("a", "prompt") == ["a"]
    assert prompts_of(["a", "b"], "prompt") == ["a", "b"]
    assert prompts_of([1, 2], "prompt") == [array("I", [1, 2])]
    assert prompts_of([[1], "a"], "prompt") == [array("I", [1]), "a"]
    with pytest.raises(InvalidRequest):
        prompts_of([1, "a"], "prompt")
