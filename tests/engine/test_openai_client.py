"""The official client against the engine as a process, on the real model."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.proto.templates import CHATML

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m-instruct"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    name: str
    country: str
    population: int


class Cities(BaseModel):
    cities: list[City]


def _serve(*flags: str) -> Iterator[str]:
    command = [sys.executable, "-m", "engine", "--model", MODEL, "--threads", "1", "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "ready" in line, line
            yield line.rsplit(" ", 1)[1].strip()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    template: Path = tmp_path_factory.mktemp("template") / "chatml.jinja"
    template.write_text(CHATML)
    yield from _serve("--chat-template", str(template), "--prompt-lookup-tokens", "4")


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=100) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    create: Any = client.chat.completions.create
    return create(**{"model": MODEL, "messages": QUESTION, "temperature": 0} | fields)


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = ask(client)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (PARIS, "stop")
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == PARIS
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_second_turn_tells_what_was_cached_of_the_first(client: openai.OpenAI) -> None:
    first = ask(client)
    messages = [*QUESTION, first.choices[0].message, {"role": "user", "content": "And of Italy?"}]
    second = ask(client, messages=messages)
    assert second.usage.prompt_tokens_details.cached_tokens >= 16
    assert "Rome" in second.choices[0].message.content


def test_a_stream_by_the_clients_own_accumulator(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert len(deltas) > 1
    assert "".join(deltas) == final.choices[0].message.content == PARIS


def test_logprobs(client: openai.OpenAI) -> None:
    content = ask(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert "".join(token.token for token in content[:-1]) == PARIS
    assert content[-1].token == "<|im_end|>"
    for token in content:
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert all(one.logprob >= other.logprob for one, other in pairwise(token.top_logprobs))


def test_an_answer_parsed_into_a_model(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Name two cities of Italy with their population, as JSON."}],
        response_format=Cities,
        temperature=0,
        max_tokens=400,
        frequency_penalty=0.5,
    )
    cities = parsed.choices[0].message.parsed
    assert cities is not None
    assert all(isinstance(city.population, int) for city in cities.cities)


def test_any_json_object(client: openai.OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=200, frequency_penalty=1)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_engine_fields_by_extra_body(client: openai.OpenAI) -> None:
    answer = ask(client, extra_body={"guided_choice": ["Rome", "Paris", "Oslo"], "top_k": 5, "min_p": 0.1})
    assert answer.choices[0].message.content == "Paris"
    number = ask(client, extra_body={"structured_outputs": {"regex": "[0-9]{2}"}})
    assert len(number.choices[0].message.content) == 2


def test_a_tool_called_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "How is the weather in Paris, in celsius?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 100,
    }
    choice = ask(client, **asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, set(arguments)) == ("get_weather", {"city", "unit"})
    with client.chat.completions.stream(model=MODEL, temperature=0, **asked) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert json.loads(streamed.function.arguments) == arguments
    answered = [*asked["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    assert ask(client, messages=answered, tools=[WEATHER], max_tokens=40).choices[0].message.content


def test_choices_seeds_and_stops(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 11, "max_tokens": 20}
    first, again = ask(client, **asked), ask(client, **asked)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1
    stopped = ask(client, stop=["France"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("The capital of ", "stop")


def test_a_likelihood_as_evaluations_ask_for_it(client: openai.OpenAI) -> None:
    def likelihood(ending: str) -> float:
        answer = client.completions.create(
            model=MODEL, prompt=f"The capital of France is{ending}", max_tokens=0, echo=True, logprobs=1, temperature=0
        )
        told = answer.choices[0].logprobs
        assert told is not None
        assert told.token_logprobs is not None
        assert told.text_offset is not None
        behind = [p for p, offset in zip(told.token_logprobs, told.text_offset, strict=True) if offset >= 24]
        return sum(p for p in behind if p is not None)

    assert likelihood(" Paris") > likelihood(" Oslo") > likelihood(" qqqq")


def test_vectors(client: openai.OpenAI) -> None:
    texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose again."]
    vectors = [row.embedding for row in client.embeddings.create(model=MODEL, input=texts).data]
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float").data
    for decoded, row in zip(vectors, plain, strict=True):
        assert decoded == pytest.approx(row.embedding, abs=1e-5)
        assert math.hypot(*decoded) == pytest.approx(1, abs=1e-3)

    def likeness(one: int, other: int) -> float:
        return sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))

    assert likeness(0, 1) > likeness(0, 2)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 99}, "n", None),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages", "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
            None,
        ),
        ({"extra_body": {"guided_grammar": "start: ("}}, "guided_grammar", None),
        ({"extra_body": {"bad_words": ["x"]}}, "bad_words", "unsupported_parameter"),
        ({"top_p": 3}, "top_p", None),
    ],
)
def test_what_cannot_be_is_a_bad_request_by_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert ask(client).choices[0].message.content == PARIS


def test_a_model_that_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, model="gpt-5")
    assert caught.value.code == "model_not_found"
    assert [model.id for model in client.models.list()] == [MODEL]


def test_guesses_are_made_and_counted_and_change_nothing(client: openai.OpenAI, url: str) -> None:
    def drafts() -> dict[str, float]:
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if line.startswith("vllm:spec_decode_num")]
        return {name.partition("{")[0]: float(value) for name, value in rows}

    text = "one two three four five six seven eight nine ten. " * 3
    before = drafts()
    answer = client.completions.create(model=MODEL, prompt=text + "one two three", max_tokens=40, temperature=0)
    after = drafts()
    accepted = (
        after["vllm:spec_decode_num_accepted_tokens_total"] - before["vllm:spec_decode_num_accepted_tokens_total"]
    )
    assert "four five six seven eight nine ten." in answer.choices[0].text
    assert accepted > 3
