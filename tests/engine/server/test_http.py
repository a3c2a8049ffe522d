import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from engine.loop import EngineLoop
from engine.server.http import Service
from engine.tokenizer import Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA, TOKENS
from tests.engine.requests import core
from tests.engine.steps import Steps

Client = TestClient[Any, Any]

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
COMPLETION = {"model": "tiny", "prompt": "a", "max_tokens": 3}
MAX_MODEL_LEN = 100


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", METADATA, {}))


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    steps.allow(1000)


@pytest.fixture
def engine(steps: Steps) -> EngineLoop:
    return EngineLoop(core(max_num_batched_tokens=100), steps.run)


@pytest.fixture
async def client(engine: EngineLoop, steps: Steps, tokenizer: Tokenizer) -> AsyncIterator[Client]:
    """The tiny tokenizer, and a model that after each token gives the next in the vocabulary."""
    engine.start()
    service = Service(engine, tokenizer, "tiny", "tiny.gguf", vocab_size=len(TOKENS), max_model_len=MAX_MODEL_LEN)

    async with TestClient(TestServer(service.app())) as client:
        yield client
    engine.stop("the test is over")
    steps.allow(1000)
    assert await asyncio.to_thread(engine.join, 10)


async def events(response: ClientResponse) -> list[Any]:
    assert response.status == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = (await response.text()).split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def error(response: ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/json"
    body = await response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    found: dict[str, Any] = body["error"]
    return found


async def test_a_chat_streams_its_role_each_token_and_the_reason(client: Client, steps: Steps) -> None:
    steps.allow(3)
    chunks = await events(await client.post("/v1/chat/completions", json=CHAT | {"stream": True}))
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert len([choice["delta"]["content"] for choice in choices[1:]]) == 3


async def test_the_first_token_is_not_held_back_for_the_second(client: Client, steps: Steps) -> None:
    steps.allow(1)
    async with client.post("/v1/completions", json=COMPLETION | {"stream": True}) as response:
        first = await response.content.readuntil(b"\n\n")
        assert json.loads(first.removeprefix(b"data: "))["choices"][0]["text"] == "b"
        steps.allow(2)


async def test_a_whole_completion_counts_its_tokens(client: Client, steps: Steps) -> None:
    steps.allow(3)
    body = await (await client.post("/v1/completions", json=COMPLETION)).json()
    assert body["choices"] == [
        {"index": 0, "text": "bcd", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert body["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 3,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_second_turn_reports_the_cached_tokens_of_the_first(client: Client, steps: Steps) -> None:
    steps.allow(1000)
    chat = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    first = (await events(await client.post("/v1/chat/completions", json=chat)))[-1]
    assert first["choices"] == []
    longer = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "y"},
    ]
    second = (await events(await client.post("/v1/chat/completions", json=chat | {"messages": longer})))[-1]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 20


async def test_a_stop_string_ends_the_stream_before_it(client: Client, steps: Steps) -> None:
    steps.allow(1000)
    asked = COMPLETION | {"max_tokens": 20, "stop": ["ef"], "stream": True}
    choices = [chunk["choices"][0] for chunk in await events(await client.post("/v1/completions", json=asked))]
    assert "".join(choice["text"] for choice in choices) == "bcd"
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "ef")


async def test_token_ids_are_a_prompt_too(client: Client, steps: Steps) -> None:
    steps.allow(3)
    asked = COMPLETION | {"prompt": [TOKENS.index("x")]}
    assert (await (await client.post("/v1/completions", json=asked)).json())["choices"][0]["text"] == "yz{"


async def disconnect_before_the_first_token(client: Client, steps: Steps, body: dict[str, Any]) -> None:
    asking = asyncio.create_task(client.post("/v1/completions", json=body))
    await steps.next()
    asking.cancel()
    await asyncio.wait([asking])


async def disconnect_in_the_stream(client: Client, steps: Steps, body: dict[str, Any]) -> None:
    steps.allow(1)
    response = await client.post("/v1/completions", json=body)
    await response.content.readuntil(b"\n\n")
    await steps.next()
    await steps.next()
    response.close()


@pytest.mark.parametrize(
    ("stream", "disconnect"),
    [
        (False, disconnect_before_the_first_token),
        (True, disconnect_before_the_first_token),
        (True, disconnect_in_the_stream),
    ],
)
async def test_a_client_that_goes_away_frees_its_blocks_at_the_next_step_boundary(
    client: Client, engine: EngineLoop, steps: Steps, stream: bool, disconnect: Callable[..., Any]
) -> None:
    await disconnect(client, steps, COMPLETION | {"max_tokens": 50, "stream": stream})
    assert engine.core.scheduler.pool.num_used == 1
    while "0 streams" not in repr(engine):
        await client.get("/health")
    steps.allow(1)
    probe = asyncio.create_task(client.post("/v1/completions", json=COMPLETION | {"prompt": "x"}))
    (only,) = await steps.next()
    assert engine.core.scheduler.num_running == 1
    assert engine.core.scheduler.pool.num_used == 1
    steps.allow(1000)
    assert (await (await probe).json())["id"] == only


async def test_a_failure_before_the_first_token_has_a_status_of_its_own(client: Client, steps: Steps) -> None:
    steps.leave.put(RuntimeError("out of luck"))
    response = await client.post("/v1/completions", json=COMPLETION | {"stream": True})
    assert response.status == 500
    assert "out of luck" in (await error(response))["message"]


async def test_a_failure_in_the_stream_is_told_in_the_stream(client: Client, steps: Steps) -> None:
    steps.allow(1)
    steps.leave.put(RuntimeError("out of luck"))
    first, last = await events(await client.post("/v1/completions", json=COMPLETION | {"stream": True}))
    assert first["choices"][0]["text"] == "b"
    assert "out of luck" in last["error"]["message"]


async def test_a_stopped_engine_is_unhealthy_and_says_so(client: Client, engine: EngineLoop) -> None:
    assert (await client.get("/health")).status == 200
    engine.stop("closing time")
    for response in (await client.get("/health"), await client.post("/v1/completions", json=COMPLETION)):
        assert response.status == 503
        assert (await error(response))["type"] == "service_unavailable_error"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param", "code"),
    [
        ("GET", "/nowhere", None, 404, None, "not_found"),
        ("GET", "/v1/chat/completions", None, 405, None, "method_not_allowed"),
        ("GET", "/v1/models/nope", None, 404, "model", "model_not_found"),
        ("POST", "/v1/chat/completions", CHAT | {"model": "nope"}, 404, "model", "model_not_found"),
        ("POST", "/v1/chat/completions", CHAT | {"n": 9}, 400, "n", None),
        ("POST", "/v1/chat/completions", CHAT | {"bad_words": ["x"]}, 400, "bad_words", "unsupported_parameter"),
        ("POST", "/v1/chat/completions", CHAT | {"max_tokens": -4}, 400, "max_tokens", None),
        ("POST", "/v1/chat/completions", CHAT | {"max_tokens": 99}, 400, "max_tokens", "context_length_exceeded"),
        ("POST", "/v1/chat/completions", CHAT | {"messages": [{"content": "hello"}]}, 400, "messages[0].role", None),
        ("POST", "/v1/completions", COMPLETION | {"prompt": "a" * 100}, 400, "prompt", "context_length_exceeded"),
        ("POST", "/v1/completions", COMPLETION | {"prompt": ""}, 400, "prompt", None),
        ("POST", "/v1/completions", COMPLETION | {"prompt": [9999]}, 400, "prompt", None),
        ("POST", "/tokenize", {}, 400, "prompt", None),
        ("POST", "/detokenize", {"tokens": [9999]}, 400, "tokens", None),
    ],
)
async def test_each_refusal_has_its_status_and_names_its_field(
    client: Client, method: str, path: str, body: object, status: int, param: str | None, code: str | None
) -> None:
    response = await client.request(method, path, json=body)
    assert response.status == status
    refusal = await error(response)
    assert (refusal["param"], refusal["code"]) == (param, code)


async def test_a_body_over_the_limit_is_refused_and_the_engine_lives_on(client: Client) -> None:
    response = await client.post("/v1/completions", data=io.BytesIO(bytes((32 << 20) + 1)))
    assert response.status == 413
    assert (await error(response))["code"] == "request_too_large"
    assert (await client.get("/health")).status == 200


async def test_a_bug_in_a_handler_is_a_500_with_the_same_body(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "decode", None)
    response = await client.post("/detokenize", json={"tokens": [5]})
    assert response.status == 500
    assert (await error(response))["type"] == "internal_error"


async def test_the_clients_request_id_comes_back_if_it_is_sane(client: Client) -> None:
    answers = [await client.get("/nowhere", headers={"x-request-id": name}) for name in ("mine-1", "a b", "x" * 200)]
    names = [answer.headers["x-request-id"] for answer in answers]
    assert names[0] == "mine-1"
    assert len({*names, "a b", "x" * 200}) == 5


async def test_text_and_chats_become_tokens_and_back(client: Client, tokenizer: Tokenizer) -> None:
    text = await (await client.post("/tokenize", json={"prompt": "hello world"})).json()
    facts = {"count": 6, "max_model_len": MAX_MODEL_LEN, "token_strs": None}
    assert text == {"tokens": tokenizer.encode("hello world"), **facts}
    chat = await (await client.post("/tokenize", json={"messages": CHAT["messages"]})).json()
    assert chat["tokens"] == tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    back = await (await client.post("/detokenize", json={"tokens": text["tokens"]})).json()
    assert back == {"prompt": "hello world"}


async def test_the_replica_describes_itself(client: Client) -> None:
    (model,) = (await (await client.get("/v1/models")).json())["data"]
    assert model == await (await client.get("/v1/models/tiny")).json()
    assert (model["id"], model["root"], model["parent"]) == ("tiny", "tiny.gguf", None)
    assert model["max_model_len"] == MAX_MODEL_LEN
    described = await (await client.get("/pointsman/tokenizer")).json()
    assert (described["model"], described["block_size"], described["max_model_len"]) == ("tiny", 16, MAX_MODEL_LEN)
    assert {"tokenizer", "chat_template"} <= described.keys()
    assert (await (await client.get("/version")).json()).keys() == {"version"}
    assert "vllm:num_requests_running" in await (await client.get("/metrics")).text()
