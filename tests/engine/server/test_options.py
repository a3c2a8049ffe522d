from typing import Any

import pytest

from engine.server.errors import ApiError
from engine.server.openai import GenerationRequest
from engine.server.options import check_choices, sampling_of
from tests.engine.server.bodies import EOS, LIMITS, chat, completion


def refused(asked: GenerationRequest, num_prompt_tokens: int = 10) -> ApiError:
    with pytest.raises(ApiError) as caught:
        sampling_of(asked, num_prompt_tokens, LIMITS)
    assert caught.value.status == 400
    return caught.value


def test_the_defaults_are_those_of_openai() -> None:
    sampling = sampling_of(chat(), 10, LIMITS)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (90, 1.0, 1.0, None)
    assert (sampling.eos_token_ids, sampling.num_top_logprobs, sampling.is_penalised) == (EOS, None, False)
    assert sampling_of(completion(), 10, LIMITS).max_tokens == 16
    assert sampling_of(completion(), 95, LIMITS).max_tokens == 5


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
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=-0.25,
        logit_bias={"4": 2},
        logprobs=True,
        top_logprobs=3,
    )
    sampling = sampling_of(asked, 10, LIMITS)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 40)
    assert (sampling.min_p, sampling.min_tokens, sampling.seed, sampling.stop) == (0.1, 3, -5, ("x",))
    assert (sampling.stop_token_ids, sampling.eos_token_ids) == (frozenset({9}), frozenset())
    assert (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) == (1.5, 0.25, -0.25)
    assert (sampling.logit_bias, sampling.num_top_logprobs) == (((4, 2.0),), 3)


@pytest.mark.parametrize("top_k", [0, -1])
def test_a_top_k_of_nothing_is_the_whole_vocabulary(top_k: int) -> None:
    assert sampling_of(chat(top_k=top_k), 10, LIMITS).top_k is None


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert sampling_of(chat(temperature=1e-9), 10, LIMITS).temperature == 0.0


def test_without_a_seed_each_request_gets_its_own() -> None:
    assert sampling_of(chat(), 10, LIMITS).seed != sampling_of(chat(), 10, LIMITS).seed


@pytest.mark.parametrize(
    ("asked", "num_top", "of_prompt"),
    [
        (chat(logprobs=True), 0, False),
        (chat(logprobs=False), None, False),
        (completion(logprobs=0), 0, False),
        (completion(logprobs=5, echo=True), 5, True),
        (completion(echo=True), None, False),
    ],
)
def test_logprobs_are_told_of_what_was_asked(asked: GenerationRequest, num_top: int | None, of_prompt: bool) -> None:
    sampling = sampling_of(asked, 10, LIMITS)
    assert (sampling.num_top_logprobs, sampling.wants_prompt_logprobs) == (num_top, of_prompt)


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(100, None), (500, None), (90, 11)])
def test_what_does_not_fit_the_context_is_refused(num_prompt_tokens: int, max_tokens: int | None) -> None:
    error = refused(chat(max_tokens=max_tokens), num_prompt_tokens)
    assert str(error).startswith("the context is 100 tokens")
    assert error.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (chat(min_tokens=9, max_tokens=8), "min_tokens"),
        (chat(top_logprobs=2), "top_logprobs"),
        (chat(logit_bias={"1000": 1}), "logit_bias"),
        (chat(stop_token_ids=[1000]), "stop_token_ids"),
        (completion(max_tokens=0), "max_tokens"),
    ],
)
def test_values_that_contradict_are_refused_by_name(asked: GenerationRequest, param: str) -> None:
    assert refused(asked).param == param


def test_a_prompt_alone_is_looked_at_by_way_of_one_token() -> None:
    assert sampling_of(completion(max_tokens=0, echo=True), 10, LIMITS).max_tokens == 1


@pytest.mark.parametrize(
    ("fields", "param"), [({"n": 5}, "n"), ({"n": 2, "best_of": 3}, "best_of"), ({"best_of": 2}, "best_of")]
)
def test_no_more_choices_than_slots(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_choices(chat(**fields), LIMITS)
    assert caught.value.param == param
    check_choices(chat(n=4, best_of=4), LIMITS)
