from typing import Any

import pytest

from engine.server.errors import ApiError
from engine.server.openai import MAX_ANSWERS, prompts_of
from tests.engine.server.bodies import chat


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6]], [[5, 6]]),
        (["a", "b"], ["a", "b"]),
        ([[1], "a", [2, 3]], [[1], "a", [2, 3]]),
    ],
)
def test_prompts_come_in_any_of_their_forms(given: Any, meant: list[str | list[int]]) -> None:
    assert prompts_of(given, "prompt") == meant


@pytest.mark.parametrize("given", [[], [1, "a"], [1.5], [-1], [None], [[["a"]]], [2**32], ["a"] * (MAX_ANSWERS + 1)])
def test_other_prompts_are_refused_by_name(given: Any) -> None:
    with pytest.raises(ApiError) as caught:
        prompts_of(given, "input")
    assert str(caught.value.param).startswith("input")


def test_usage_is_wanted_only_if_asked_for() -> None:
    assert [chat(stream_options=given).wants_usage for given in (None, {}, {"include_usage": True})] == [
        False,
        False,
        True,
    ]


def test_no_more_answers_than_one_request_may_have() -> None:
    assert len(prompts_of(["a"] * 8, "prompt", num_choices=MAX_ANSWERS // 8)) == 8
    with pytest.raises(ApiError, match="answers at most"):
        prompts_of(["a"] * 8, "prompt", num_choices=MAX_ANSWERS // 8 + 1)
