"""The clients' contract over a real grpc.aio server in this process: every call, there and back."""

import json
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.json_format import MessageToJson

from pointsman.v1.common_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Sampling, Usage
from pointsman.v1.inference_pb2 import (
    ChatEvent,
    ChatMessage,
    ChatReply,
    ChatRequest,
    CompleteEvent,
    CompleteReply,
    CompleteRequest,
    ContentPart,
    TokenIds,
    ToolCall,
)
from pointsman.v1.inference_pb2_grpc import InferenceServicer, InferenceStub, add_InferenceServicer_to_server


class Echo(InferenceServicer):
    """Says back what it was sent, so that each field has made the way out and home."""

    async def Chat(self, request: ChatRequest, context: object) -> ChatReply:
        calls = [ToolCall(id="c1", arguments=MessageToJson(tool)) for tool in request.tools]
        message = ChatMessage(role="assistant", parts=request.messages[-1].parts, tool_calls=calls)
        usage = Usage(prompt_tokens=12, cached_tokens=8, output_tokens=3)
        return ChatReply(id="r1", model=request.model, message=message, finish_reason=FINISH_REASON_STOP, usage=usage)

    async def ChatStream(self, request: ChatRequest, context: object) -> AsyncIterator[ChatEvent]:
        for word in request.messages[0].parts[0].text.split():
            yield ChatEvent(id="r1", text=word)
        yield ChatEvent(id="r1", finish_reason=FINISH_REASON_LENGTH, usage=Usage(output_tokens=2))

    async def Complete(self, request: CompleteRequest, context: object) -> CompleteReply:
        return CompleteReply(id=request.cache_salt, model=request.model, text=f"{list(request.tokens.ids)}")

    async def CompleteStream(self, request: CompleteRequest, context: object) -> AsyncIterator[CompleteEvent]:
        for stop in request.sampling.stop:
            yield CompleteEvent(text=f"{request.text} not {stop}")


@pytest.fixture
async def stub() -> AsyncIterator[InferenceStub]:
    server = grpc.aio.server()
    add_InferenceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield InferenceStub(channel)
    await server.stop(None)


def chat(text: str) -> ChatRequest:
    request = ChatRequest(model="m", sampling=Sampling(max_tokens=2, temperature=0.0))
    request.messages.add(role="user", parts=[ContentPart(text=text)])
    return request


async def test_a_chat_goes_there_and_back_whole(stub: InferenceStub) -> None:
    request = chat("hello")
    request.messages[0].parts.add(image_url="data:image/png;base64,AA==")
    request.tools.add().update({"type": "function", "function": {"name": "clock"}})
    request.template_options.update({"enable_thinking": False})
    reply = await stub.Chat(request, timeout=20)
    assert reply.message.parts == request.messages[0].parts
    assert json.loads(reply.message.tool_calls[0].arguments) == {"type": "function", "function": {"name": "clock"}}
    assert (reply.model, reply.finish_reason, reply.usage.cached_tokens) == ("m", FINISH_REASON_STOP, 8)


async def test_a_chat_streams_event_by_event_and_ends_with_its_usage(stub: InferenceStub) -> None:
    events = [event async for event in stub.ChatStream(chat("two words"), timeout=20)]
    assert [event.text for event in events] == ["two", "words", ""]
    assert [event.HasField("usage") for event in events] == [False, False, True]
    assert events[-1].finish_reason == FINISH_REASON_LENGTH


async def test_a_completion_takes_token_ids(stub: InferenceStub) -> None:
    request = CompleteRequest(model="m", tokens=TokenIds(ids=[1, 2**32 - 1]), cache_salt="s")
    reply = await stub.Complete(request, timeout=20)
    assert (reply.id, reply.text) == ("s", "[1, 4294967295]")
    assert request.WhichOneof("prompt") == "tokens"


async def test_a_completion_streams(stub: InferenceStub) -> None:
    request = CompleteRequest(model="m", text="go", sampling=Sampling(stop=["a", "b"]))
    assert [e.text async for e in stub.CompleteStream(request, timeout=20)] == ["go not a", "go not b"]


def test_a_sampling_of_zero_differs_from_one_not_set() -> None:
    assert Sampling(temperature=0.0).HasField("temperature")
    assert not Sampling().HasField("temperature")
