"""The clients' contract, served: every method of `Inference`. Knows which request an ask becomes and which
message an answer; all else is `calls.py`'s and `sessions.py`'s."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pointsman.v1.inference_pb2 import (
    ChatReply,
    ChatRequest,
    CompleteReply,
    CompleteRequest,
    EmbedReply,
    EmbedRequest,
    ListModelsReply,
    ListModelsRequest,
    Model,
)
from pointsman.v1.inference_pb2_grpc import InferenceServicer
from router.core import Surface
from router.transports.grpc import answers, asks
from router.transports.grpc.calls import Calls, Context, ending
from router.transports.grpc.sessions import SessionCall

Models = Callable[[], Sequence[Mapping[str, object]]]


@dataclass(eq=False, slots=True)
class InferenceService(InferenceServicer):
    """`models` lists what can be asked for, in the shape of /v1/models' entries."""

    calls: Calls
    models: Models
    max_session_bytes: int = 8 * 2**20

    async def Chat(self, request: ChatRequest, context: Context) -> ChatReply:
        async with ending(context):
            body = asks.chat_body(request, is_stream=False)
            async with self.calls.answer(context, Surface.CHAT, body) as (id, outbox):
                return answers.chat_reply(id, await self.calls.whole(context, outbox))

    async def ChatStream(self, request: ChatRequest, context: Context) -> None:
        async with ending(context):
            body = asks.chat_body(request, is_stream=True)
            async with self.calls.answer(context, Surface.CHAT, body) as (id, outbox):
                told = answers.Told(id)
                async for chunk in self.calls.events(context, outbox):
                    if (event := told.chat(chunk)) is not None:
                        await context.write(event)
                await context.write(told.last_chat())

    async def Complete(self, request: CompleteRequest, context: Context) -> CompleteReply:
        async with ending(context):
            body = asks.complete_body(request, is_stream=False)
            async with self.calls.answer(context, Surface.COMPLETIONS, body) as (id, outbox):
                return answers.complete_reply(id, await self.calls.whole(context, outbox))

    async def CompleteStream(self, request: CompleteRequest, context: Context) -> None:
        async with ending(context):
            body = asks.complete_body(request, is_stream=True)
            async with self.calls.answer(context, Surface.COMPLETIONS, body) as (id, outbox):
                told = answers.Told(id)
                async for chunk in self.calls.events(context, outbox):
                    if (event := told.completion(chunk)) is not None:
                        await context.write(event)
                await context.write(told.last_completion())

    async def ChatSession(self, _: object, context: Context) -> None:
        await SessionCall(self.calls, context, self.max_session_bytes).run()

    async def Embed(self, request: EmbedRequest, context: Context) -> EmbedReply:
        async with ending(context):
            body = asks.embed_body(request)
            async with self.calls.answer(context, Surface.EMBEDDINGS, body) as (_, outbox):
                return answers.embed_reply(await self.calls.whole(context, outbox))

    async def ListModels(self, request: ListModelsRequest, context: Context) -> ListModelsReply:
        return ListModelsReply(models=[_model(entry) for entry in self.models()])


def _model(entry: Mapping[str, object]) -> Model:
    length = entry["max_model_len"]
    return Model(
        id=str(entry["id"]),
        parent=str(entry["parent"] or ""),
        max_model_len=length if isinstance(length, int) else None,
    )
