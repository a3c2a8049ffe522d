"""What clients can ask of generations, against a whole engine."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.engine.model.tiny_tokenizer import TEMPLATE, TOKENS
from tests.engine.server.tiny_service import Client, served, tiny_service

COMPLETION = {"model": "tiny", "prompt": "hello world", "max_tokens": 8, "temperature": 0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
WITH_TOOLS = TEMPLATE + "{% if tools %}<tool_call>{% endif %}"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
# Each token may stand in ever more places: the parser gives up after a few.
ENDLESS = "start: (a{0,1000}){0,1000}\na: (b{0,1000}){0,1000}\nb: /./"
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"$ref": "#/$defs/A", "$defs": {"A": SCHEMA}}}},
    {"type": "function", "function": {"name": "wait", "description": "nothing"}},
]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with served(tiny_service(tmp_path, template=WITH_TOOLS)) as client:
        yield client


async def complete(client: Client, **fields: Any) -> dict[str, Any]:
    return await _post(client, "/v1/completions", COMPLETION | fields)


async def chat(client: Client, **fields: Any) -> dict[str, Any]:
    return await _post(client, "/v1/chat/completions", CHAT | fields)


async def _post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json=body)
    answer: dict[str, Any] = await response.json()
    assert response.status == 200, answer
    return answer


async def stream(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (await (await client.post(path, json=body | {"stream": True})).text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def refused(client: Client, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    base = CHAT if "chat" in path else COMPLETION
    response = await client.post(path, json=base | body)
    assert response.status == 400
    error: dict[str, Any] = (await response.json())["error"]
    return error


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


# choices


async def test_choices_differ_by_their_seeds_and_are_the_same_again(client: Client) -> None:
    asked = {"n": 4, "temperature": 1.0, "seed": 7}
    first, again = await complete(client, **asked), await complete(client, **asked)
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
    assert len(set(texts(first))) > 1
    assert texts(first) == texts(again)
    assert texts(first)[0] == texts(await complete(client, temperature=1.0, seed=7))[0]
    assert first["usage"]["completion_tokens"] == sum([8] * 4)


async def test_a_seed_gives_the_same_whatever_else_is_in_the_batch(client: Client) -> None:
    asked = {"temperature": 1.2, "seed": 5, "max_tokens": 30, "top_p": 0.95, "frequency_penalty": 0.5}
    alone = texts(await complete(client, **asked))
    others = [complete(client, prompt="x" * size, temperature=1.0, max_tokens=25) for size in (1, 40, 90)]
    together, *_ = await asyncio.gather(complete(client, **asked), *others)
    assert texts(together) == alone


async def test_choices_after_the_first_find_the_prompt_cached(client: Client) -> None:
    prompt = "hello world " * 8
    await complete(client, prompt=prompt, n=3)
    metrics = await (await client.get("/metrics")).text()
    (hits,) = [line for line in metrics.splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
    assert float(hits.split()[-1]) >= 2 * 16


async def test_several_prompts_are_answered_in_their_order(client: Client) -> None:
    prompts = ["hello", "world 12", "x"]
    together = await complete(client, prompt=prompts, n=2, temperature=1.0, seed=3)
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    alone = [texts(await complete(client, prompt=prompt, n=2, temperature=1.0, seed=3)) for prompt in prompts]
    assert texts(together) == list(chain(*alone))


async def test_streamed_choices_come_side_by_side_and_each_ends_once(client: Client) -> None:
    asked = CHAT | {"n": 3, "temperature": 1.0, "seed": 1, "stream_options": {"include_usage": True}}
    *events, last = await stream(client, "/v1/chat/completions", asked)
    said = dict.fromkeys(range(3), "")
    ends = []
    for choice in (event["choices"][0] for event in events):
        said[choice["index"]] += choice["delta"].get("content", "")
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert sorted(ends) == [0, 1, 2]
    assert last["usage"]["completion_tokens"] == 24
    whole = await chat(client, n=3, temperature=1.0, seed=1)
    assert [choice["message"]["content"] for choice in whole["choices"]] == list(said.values())


# logprobs and echo


async def test_logprobs_add_up_over_the_vocabulary(client: Client) -> None:
    answer = await chat(client, logprobs=True, top_logprobs=20, max_tokens=3)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for entry in content:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]
        assert 0 < sum(math.exp(top["logprob"]) for top in entry["top_logprobs"]) < 1.001
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]


async def test_streamed_logprobs_are_those_of_the_whole(client: Client) -> None:
    asked = {"logprobs": True, "top_logprobs": 2}
    events = await stream(client, "/v1/chat/completions", CHAT | asked)
    streamed = [entry for e in events if (told := e["choices"][0]["logprobs"]) for entry in told["content"]]
    whole = (await chat(client, **asked))["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole]
    assert [entry["logprob"] for entry in streamed] == pytest.approx([entry["logprob"] for entry in whole], abs=1e-4)


@pytest.mark.parametrize("chunk_tokens", [8, 256])
async def test_the_logprobs_of_a_prompt_are_those_it_would_have_been_generated_with(
    tmp_path: Path, chunk_tokens: int
) -> None:
    async with served(tiny_service(tmp_path, max_num_batched_tokens=chunk_tokens)) as client:
        generated = await complete(client, logprobs=2, max_tokens=40, prompt="hello", ignore_eos=True)
        ids = [TOKENS.index(token) for token in ("hello",)]
        written = generated["choices"][0]["logprobs"]
        asked = {"prompt": [*ids, *_ids(written["tokens"])], "max_tokens": 0, "echo": True, "logprobs": 2}
        for _ in range(2):  # Cached prompts are told of as well.
            told = await complete(client, **asked)
            columns = told["choices"][0]["logprobs"]
            assert columns["token_logprobs"][0] is None
            assert columns["token_logprobs"][1:] == pytest.approx(written["token_logprobs"], abs=1e-3)
            assert columns["tokens"][1:] == written["tokens"]
            assert told["usage"]["completion_tokens"] == 0
            assert told["choices"][0]["text"] == "hello" + generated["choices"][0]["text"]


def _ids(tokens: list[str]) -> list[int]:
    """From the spelling of completions back to ids."""
    spelled = {_spelled(token): token_id for token_id, token in enumerate(TOKENS)}
    return [spelled[token] for token in tokens]


def _spelled(token: str) -> str:
    from engine.tokenizer import _byte_level_alphabet, _byte_level_bytes

    data = _byte_level_bytes(_byte_level_alphabet(), token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


async def test_an_echo_comes_before_the_answer(client: Client) -> None:
    plain = texts(await complete(client))[0]
    assert texts(await complete(client, echo=True)) == ["hello world" + plain]
    events = await stream(client, "/v1/completions", COMPLETION | {"echo": True})
    assert "".join(event["choices"][0]["text"] for event in events) == "hello world" + plain


# what changes the choice


async def test_a_bias_makes_a_token_certain_or_impossible(client: Client) -> None:
    token = TOKENS.index("Z")
    assert texts(await complete(client, logit_bias={token: 100})) == ["Z" * 8]
    likely = (await complete(client, logprobs=0, max_tokens=1))["choices"][0]["logprobs"]["tokens"][0]
    (token_id,) = _ids([likely])
    banned = await complete(client, logit_bias={token_id: -100}, logprobs=0, max_tokens=1)
    assert banned["choices"][0]["logprobs"]["tokens"] != [likely]


async def test_a_penalty_stops_a_repetition(client: Client) -> None:
    token = TOKENS.index("Z")
    asked = {"logit_bias": {token: 30}, "max_tokens": 30}
    assert texts(await complete(client, **asked)) == ["Z" * 30]
    assert texts(await complete(client, **asked, frequency_penalty=2)) != ["Z" * 30]


async def test_stops_are_kept_or_left_out(client: Client) -> None:
    token = TOKENS.index("Z")
    asked = {"logit_bias": {token: 100}, "stop": "ZZZ"}
    assert texts(await complete(client, **asked)) == [""]
    assert texts(await complete(client, **asked, include_stop_str_in_output=True)) == ["ZZZ"]
    by_id = await complete(client, logit_bias={token: 100}, stop_token_ids=[token], min_tokens=3, max_tokens=9)
    assert by_id["choices"][0]["stop_reason"] == token


# structure


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
)
async def test_an_answer_keeps_to_a_schema(client: Client, asked: dict[str, Any]) -> None:
    answer = await chat(client, **asked, max_tokens=200, temperature=1.0, n=3)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        assert list(json.loads(choice["message"]["content"])) == ["ok"]


async def test_an_answer_keeps_to_patterns_choices_and_grammars_in_one_batch(client: Client) -> None:
    asked: list[dict[str, Any]] = [
        {"guided_regex": "[0-9]{3}"},
        {"guided_choice": ["yes", "no"]},
        {"guided_grammar": 'root ::= "a" "b"'},
        {"structured_outputs": {"regex": "[x-z]{2}"}},
        {},
    ]
    answers = await asyncio.gather(*(complete(client, **fields, temperature=1.5, seed=1) for fields in asked))
    number, choice, grammar, letters, free = (texts(answer)[0] for answer in answers)
    assert number.isdecimal()
    assert len(number) == 3
    assert choice in ("yes", "no")
    assert grammar == "ab"
    assert set(letters) <= set("xyz")
    assert texts(await complete(client, temperature=1.5, seed=1)) == [free]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "go"}}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "thing"}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"n": 9}, "n"),
        ({"max_tokens": 600}, "max_tokens"),
        ({"max_completion_tokens": 600}, "max_completion_tokens"),
        ({"guided_grammar": ENDLESS, "max_tokens": 300, "ignore_eos": True}, "guided_grammar"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
    ],
)
async def test_what_cannot_be_is_refused_by_name_and_the_engine_goes_on(
    client: Client, fields: dict[str, Any], param: str
) -> None:
    other = asyncio.create_task(chat(client, max_tokens=100, ignore_eos=True))
    error = await refused(client, **fields)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert (await other)["usage"]["completion_tokens"] == 100


async def test_a_stream_that_can_be_kept_to_its_grammar_no_further_ends_by_its_name(client: Client) -> None:
    asked = {"guided_grammar": ENDLESS, "max_tokens": 300, "ignore_eos": True}
    *events, last = await stream(client, "/v1/completions", COMPLETION | asked)
    assert "".join(choice["text"] for event in events for choice in event["choices"])
    assert not any(choice["finish_reason"] for event in events for choice in event["choices"])
    assert (last["error"]["param"], last["error"]["type"]) == ("guided_grammar", "invalid_request_error")
    assert last["error"]["message"].startswith("guided_grammar: the output cannot be kept to it: ")


# tools


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_a_call_that_must_be_is_made_and_its_arguments_fit(client: Client, choice: Any) -> None:
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 300, "temperature": 1.0, "seed": 4}
    choice_made = (await chat(client, **asked))["choices"][0]
    assert (choice_made["finish_reason"], choice_made["message"]["content"]) == ("tool_calls", None)
    for call in choice_made["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        assert arguments == {} if call["function"]["name"] == "wait" else list(arguments) == ["ok"]
    events = await stream(client, "/v1/chat/completions", CHAT | asked)
    deltas = [part for event in events for part in event["choices"][0]["delta"].get("tool_calls", [])]
    assert {part["index"] for part in deltas} == set(range(len(choice_made["message"]["tool_calls"])))
    names = [part["function"]["name"] for part in deltas if "id" in part]
    assert names == [call["function"]["name"] for call in choice_made["message"]["tool_calls"]]


async def test_a_model_may_answer_without_a_call(client: Client) -> None:
    free = await chat(client, tools=TOOLS)
    assert free["choices"][0]["finish_reason"] == "length"
    assert "tool_calls" not in free["choices"][0]["message"]


async def test_a_template_without_tools_takes_none(tmp_path: Path) -> None:
    async with served(tiny_service(tmp_path)) as client:
        error = await refused(client, tools=TOOLS)
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")


# a chat's other fields


async def test_a_last_message_is_continued(client: Client) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": "So far"}]  # type: ignore[misc]
    body = {"model": "tiny", "messages": messages, "continue_final_message": True}
    tokens = (await _post(client, "/tokenize", body))["tokens"]
    prompt = (await _post(client, "/detokenize", {"tokens": tokens}))["prompt"]
    assert prompt.endswith("assistant\nSo far")
    answer = await chat(client, messages=messages, continue_final_message=True)
    assert answer["usage"]["prompt_tokens"] == len(tokens)


HOSTILE = {
    "time": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "interpreter": "{{ messages.__class__.__mro__ }}",
}


@pytest.mark.parametrize("harm", HOSTILE)
async def test_a_template_that_means_harm_harms_only_its_chat(tmp_path: Path, harm: str) -> None:
    async with served(tiny_service(tmp_path, template=HOSTILE[harm])) as client:
        other = asyncio.create_task(complete(client, max_tokens=200, ignore_eos=True))
        error = await refused(client)
        assert (error["param"], "refuses the messages" in error["message"]) == ("messages", True)
        assert (await other)["usage"]["completion_tokens"] == 200


async def test_special_tokens_are_shown_if_asked_for(client: Client) -> None:
    asked = {"logit_bias": {TOKENS.index("<|im_start|>"): 100}, "max_tokens": 2}
    assert texts(await complete(client, **asked)) == [""]
    assert texts(await complete(client, **asked, skip_special_tokens=False)) == ["<|im_start|>" * 2]


async def test_a_client_that_goes_away_frees_all_its_choices(tmp_path: Path) -> None:
    service = tiny_service(tmp_path)
    async with served(service) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json=COMPLETION | {"n": 4, "max_tokens": 450}))
        while service.engine.core.scheduler.num_running < 4:
            await client.get("/health")
        asking.cancel()
        await asyncio.wait([asking])
        while service.engine.core.has_work:
            await client.get("/health")
        assert service.engine.core.scheduler.pool.num_used == 0
