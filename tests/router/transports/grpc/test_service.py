"""Every method of the clients' contract, over a real connection, the proxy behind it and replicas in memory."""

import json

import grpc
import pytest

from pointsman.v1.common_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, FINISH_REASON_TOOL_CALLS, Sampling
from pointsman.v1.inference_pb2 import CompleteRequest, EmbedRequest, ListModelsRequest, TokenIds
from router.core import Outcome
from tests.contracts.hostile import DONE
from tests.router.transports.grpc.rig import chat, field_of, open_rig, reason_of


def chunk(delta: object = None, finish: str | None = None, usage: object = None, text: str | None = None) -> bytes:
    choice = {"index": 0, "finish_reason": finish} | ({"text": text} if text is not None else {"delta": delta or {}})
    content = {"id": "engine's", "model": "m-1", "choices": [choice] if usage is None else [], "usage": usage}
    return b"data: " + json.dumps(content).encode() + b"\n\n"


USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


async def test_a_chat_is_answered_whole() -> None:
    async with open_rig() as rig:
        call = rig.stub.Chat(chat("hello", sampling=Sampling(max_tokens=5)), metadata=(("x-request-id", "r-1"),))
        exchange = await rig.exchange()
        assert json.loads(exchange.attempt.body) == {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 5,
        }
        message = {"role": "assistant", "content": "yes", "tool_calls": None}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        exchange.answer(200, json.dumps({"id": "x", "model": "m-1", "choices": [choice], "usage": USAGE}).encode())
        reply = await call
        assert (reply.id, reply.model, reply.message.parts[0].text) == ("r-1", "m-1", "yes")
        assert reply.finish_reason == FINISH_REASON_LENGTH
        assert (reply.usage.prompt_tokens, reply.usage.cached_tokens, reply.usage.output_tokens) == (12, 8, 3)
        told = dict(await call.initial_metadata())
        assert told["x-request-id"] == "r-1"
        assert told["x-pointsman-replica"] == exchange.attempt.replica.id
        assert "policy=" in told["x-pointsman-reason"]


async def test_a_stream_comes_event_by_event_and_ends_with_why_and_usage() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        exchange = await rig.exchange()
        assert json.loads(exchange.attempt.body)["stream_options"] == {"include_usage": True}
        exchange.head()
        exchange.send(chunk({"role": "assistant", "content": ""}) + chunk({"content": "He"}))
        first = await call.read()
        assert (first.text, first.finish_reason) == ("He", 0)
        exchange.send(chunk({"reasoning": "hm"}) + chunk({"content": "y"}, "stop") + chunk(usage=USAGE) + DONE)
        exchange.end()
        reasoning, text, last = [await call.read() for _ in range(3)]
        assert (reasoning.reasoning, reasoning.text, text.text) == ("hm", "", "y")
        assert (last.finish_reason, last.usage.output_tokens, last.text) == (FINISH_REASON_STOP, 3, "")
        assert last.id == first.id
        assert await call.code() is grpc.StatusCode.OK


async def test_tools_go_and_their_calls_come_in_pieces() -> None:
    async with open_rig() as rig:
        request = chat()
        request.tools.add().update({"type": "function", "function": {"name": "f", "parameters": {"minimum": 1}}})
        call = rig.stub.ChatStream(request)
        exchange = await rig.exchange()
        [tool] = json.loads(exchange.attempt.body)["tools"]
        assert tool["function"]["parameters"] == {"minimum": 1}
        assert b"1.0" not in exchange.attempt.body
        pieces = [
            {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        ]
        exchange.head()
        exchange.send(b"".join(chunk(piece) for piece in pieces) + chunk({}, "tool_calls") + DONE)
        exchange.end()
        *events, last = [event async for event in call]
        assert "".join(event.tool_calls[0].arguments for event in events) == '{"a":1}'
        assert (events[0].tool_calls[0].id, events[0].tool_calls[0].name) == ("c1", "f")
        assert last.finish_reason == FINISH_REASON_TOOL_CALLS


async def test_a_completion_takes_text_or_token_ids() -> None:
    async with open_rig() as rig:
        call = rig.stub.Complete(CompleteRequest(model="m", tokens=TokenIds(ids=[1, 2, 3])))
        exchange = await rig.exchange()
        assert json.loads(exchange.attempt.body)["prompt"] == [1, 2, 3]
        exchange.answer(200, json.dumps({"choices": [{"text": "ok", "finish_reason": "stop"}]}).encode())
        assert (await call).text == "ok"
        stream = rig.stub.CompleteStream(CompleteRequest(model="m", text="Once"))
        exchange = await rig.exchange(1)
        exchange.head()
        exchange.send(chunk(text=" upon") + chunk(text="", finish="length") + DONE)
        exchange.end()
        first, last = [event async for event in stream]
        assert (first.text, last.finish_reason) == (" upon", FINISH_REASON_LENGTH)


async def test_vectors_come_in_the_order_of_their_texts() -> None:
    async with open_rig() as rig:
        call = rig.stub.Embed(EmbedRequest(model="m", texts=["a", "b"]))
        exchange = await rig.exchange()
        assert (exchange.attempt.path, json.loads(exchange.attempt.body)["input"]) == ("/v1/embeddings", ["a", "b"])
        vectors = [{"index": 1, "embedding": [0.5]}, {"index": 0, "embedding": [0.25]}]
        exchange.answer(200, json.dumps({"model": "m", "data": vectors, "usage": {"prompt_tokens": 2}}).encode())
        reply = await call
        assert [list(each.values) for each in reply.embeddings] == [[0.25], [0.5]]
        assert reply.usage.prompt_tokens == 2


async def test_models_are_listed() -> None:
    async with open_rig() as rig:
        assert [model.id for model in (await rig.stub.ListModels(ListModelsRequest())).models] == ["m"]


@pytest.mark.parametrize(
    ("request_of", "field"),
    [
        (lambda: chat(model=""), "model"),
        (lambda: chat(messages=[]), "messages"),
        (lambda: chat(messages=[{}]), "messages[0].role"),
        (lambda: chat(messages=[{"role": "user", "parts": [{}]}]), "messages[0].parts[0]"),
        (lambda: CompleteRequest(model="m"), "prompt"),
        (lambda: EmbedRequest(model="m"), "texts"),
    ],
)
async def test_a_wrong_field_is_named(request_of: object, field: str) -> None:
    async with open_rig() as rig:
        request = request_of()  # type: ignore[operator]
        method = {"ChatRequest": "Chat", "CompleteRequest": "Complete", "EmbedRequest": "Embed"}[type(request).__name__]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(rig.stub, method)(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field_of(caught.value) == field
        assert rig.upstream.exchanges == []


async def test_an_unknown_model_is_not_found() -> None:
    async with open_rig() as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Chat(chat(model="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (reason_of(caught.value), field_of(caught.value)) == ("model_not_found", "model")


async def test_a_replicas_own_refusal_comes_in_its_words() -> None:
    async with open_rig() as rig:
        call = rig.stub.ChatStream(chat())
        error = {"message": "`top_k` is too large", "type": "invalid_request_error", "param": "top_k", "code": None}
        (await rig.exchange()).answer(400, json.dumps({"error": error}).encode())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, error["message"])
        assert field_of(caught.value) == "top_k"


async def test_an_answer_of_another_shape_is_unavailable_and_blames_nobody_else() -> None:
    async with open_rig() as rig:
        call = rig.stub.Chat(chat())
        (await rig.exchange()).answer(200, b'{"choices": 3}')
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert reason_of(caught.value) == "replica_bad_answer"
        await rig.until_idle()
        assert rig.station.outcomes == [Outcome.OK]
