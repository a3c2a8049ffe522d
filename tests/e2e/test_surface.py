"""What clients bring besides chat completions, with the real model: Responses, Messages, LangChain, WebSocket, gRPC."""

import json
import subprocess
import sys
import urllib.request
from typing import Any

import anthropic
import grpc
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from websockets.sync.client import connect

from pointsman.v1.common_pb2 import FINISH_REASON_STOP, Sampling
from pointsman.v1.inference_pb2 import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    EmbedRequest,
    InputAppend,
    InputCommit,
    ListModelsRequest,
    SessionOpen,
    SessionRequest,
)
from pointsman.v1.inference_pb2_grpc import InferenceStub
from tests.e2e.fleet import MODEL, Fleet, get_json, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def test_the_sdk_gets_a_response_and_follows_it(client: openai.OpenAI) -> None:
    """On a busy machine Redis may seem away for a moment: a response says whether it is stored, a 503 to try again."""
    client, firsts = client.with_options(max_retries=20), list[Any]()

    def is_stored() -> bool:
        firsts.append(client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=20))
        return firsts[-1].store is True

    wait_until(is_stored, 60, "the response is stored")
    first = firsts[-1]
    assert first.output_text == ANSWER
    assert first.usage is not None
    assert first.usage.output_tokens == 8
    second = client.responses.create(
        model=MODEL, input="And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=20
    )
    assert "Rome" in second.output_text
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + 8
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_the_sdk_streams_a_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == ANSWER


def test_the_sdks_wrong_response_names_the_field(client: openai.OpenAI) -> None:
    wrong: Any = [{"role": "robot", "content": "x"}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=wrong)
    assert caught.value.param == "input[0].role"


def test_anthropics_sdk_gets_streams_and_counts_messages(fleet: Fleet) -> None:
    with anthropic.Anthropic(base_url=fleet.url, api_key="unused", max_retries=0) as client:
        asked: Any = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": QUESTION}]}
        whole = client.messages.create(**asked, extra_body={"temperature": 0})
        assert [block.text for block in whole.content if block.type == "text"] == [ANSWER]
        assert whole.stop_reason == "end_turn"
        with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
            assert "".join(stream.text_stream) == ANSWER
        counted = client.messages.count_tokens(model=MODEL, messages=asked["messages"])
        used = whole.usage
        assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(**asked | {"model": "none"})
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "not_found_error"


def test_langchain_chats(fleet: Fleet) -> None:
    chat = ChatOpenAI(model=MODEL, base_url=f"{fleet.url}/v1", api_key=SecretStr("unused"), temperature=0)
    assert chat.invoke(QUESTION).content == ANSWER
    assert "".join(str(chunk.content) for chunk in chat.stream(QUESTION)) == ANSWER


def test_a_conversation_over_a_websocket(fleet: Fleet) -> None:
    with connect(f"{fleet.url.replace('http', 'ws')}/v1/chat/ws") as socket:

        def say(**fields: object) -> None:
            socket.send(json.dumps(fields))

        def answer(id: str) -> str:
            text = ""
            while (heard := json.loads(socket.recv(timeout=60)))["type"] != "request.done":
                assert heard["type"] in ("session.opened", "request.started", "request.event"), heard
                for choice in heard.get("event", {}).get("choices", ()):
                    text += choice["delta"].get("content") or ""
            assert heard["id"] == id
            return text

        say(type="session.open", session="s", body={"model": MODEL, "temperature": 0})
        say(type="input.append", session="s", text="What is the capital ")
        say(type="input.append", session="s", text="of France?")
        say(type="input.commit", session="s", id="1")
        assert answer("1") == ANSWER
        say(type="input.commit", session="s", id="2", messages=[{"role": "user", "content": "And of Italy?"}])
        assert "Rome" in answer("2")


def test_chats_over_grpc(fleet: Fleet) -> None:
    with grpc.insecure_channel(fleet.grpc_address) as channel:
        stub: Any = InferenceStub(channel)
        assert [model.id for model in stub.ListModels(ListModelsRequest()).models] == [MODEL]
        message = ChatMessage(role="user", parts=[ContentPart(text=QUESTION)])
        request = ChatRequest(model=MODEL, messages=[message], sampling=Sampling(temperature=0.0))
        *events, last = list(stub.ChatStream(request))
        assert "".join(event.text for event in events) == ANSWER
        assert (last.finish_reason, last.usage.output_tokens) == (FINISH_REASON_STOP, 8)
        assert stub.Chat(request).message.parts[0].text == ANSWER
        vectors = stub.Embed(EmbedRequest(model=MODEL, texts=["a", "b"])).embeddings
        assert len(vectors) == 2
        assert len(vectors[0].values) == len(vectors[1].values) > 100


def test_a_session_over_grpc(fleet: Fleet) -> None:
    asks = [
        SessionRequest(open=SessionOpen(model=MODEL, sampling=Sampling(temperature=0.0))),
        SessionRequest(append=InputAppend(text=QUESTION)),
        SessionRequest(commit=InputCommit(turn_id="t")),
    ]
    with grpc.insecure_channel(fleet.grpc_address) as channel:
        stub: Any = InferenceStub(channel)
        heard = list(stub.ChatSession(iter(asks)))
    assert {event.turn_id for event in heard} == {"t"}
    assert "".join(event.answer.text for event in heard) == ANSWER


def test_tritons_client_infers_whole_and_streamed(fleet: Fleet) -> None:
    command = [sys.executable, "-m", "tests.e2e.triton_client", fleet.grpc_address, MODEL, "The capital of France is"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    whole, streamed = json.loads(done.stdout)
    assert whole == streamed
    assert whole.startswith(" Paris")


def test_the_sdk_runs_a_batch_of_a_file(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "\n".join(json.dumps({"custom_id": f"q{number}", **line}) for number in range(5))
    file = client.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", 60, "the batch is complete")
    done = client.batches.retrieve(batch.id)
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed) == (5, 5)
    assert done.output_file_id is not None
    results = [json.loads(each) for each in client.files.content(done.output_file_id).text.splitlines()]
    assert {each["custom_id"] for each in results} == {f"q{number}" for number in range(5)}
    assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in results} == {ANSWER}
    assert batch.id in [each.id for each in client.batches.list()]
    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_request_that_nobody_waits_for(fleet: Fleet) -> None:
    body = {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    request = urllib.request.Request(f"{fleet.url}/v1/async/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as response:
        job = json.loads(response.read())
    assert job["status"] == "queued"
    address = f"{fleet.url}/v1/async/{job['id']}"
    wait_until(lambda: get_json(address)["status"] == "succeeded", 60, "the job has ended")
    answer = get_json(address)["response"]["body"]
    assert answer["choices"][0]["message"]["content"] == ANSWER
