"""OpenAI's answers as gRPC messages. Knows the two contracts' fields; knows nothing of calls or of errors' statuses."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pointsman.v1.common_pb2 import (
    FINISH_REASON_ABORT,
    FINISH_REASON_CONTENT_FILTER,
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_TOOL_CALLS,
    FinishReason,
    Usage,
)
from pointsman.v1.inference_pb2 import (
    ChatEvent,
    ChatMessage,
    ChatReply,
    CompleteEvent,
    CompleteReply,
    ContentPart,
    Embedding,
    EmbedReply,
    ToolCall,
)
from router.errors import BadAnswer
from router.transports.chunks import Call, Choice, Chunk, Counts, Message

_REASONS: dict[str, FinishReason] = {
    "stop": FINISH_REASON_STOP,
    "length": FINISH_REASON_LENGTH,
    "tool_calls": FINISH_REASON_TOOL_CALLS,
    "function_call": FINISH_REASON_TOOL_CALLS,
    "content_filter": FINISH_REASON_CONTENT_FILTER,
    "abort": FINISH_REASON_ABORT,
}


@dataclass(eq=False, slots=True)
class Told:
    """A stream as events. Why it ended and what it used are held back for the last event, wherever the engine put
    them."""

    id: str
    finish_reason: str | None = None
    usage: Counts | None = None
    text: list[str] = field(default_factory=list)

    def chat(self, chunk: Chunk) -> ChatEvent | None:
        """The next event; None where the chunk appends nothing."""
        choice = self._choice(chunk)
        delta = choice.delta if choice is not None else None
        if delta is None:
            return None
        text, reasoning = delta.content or "", delta.reasoning or delta.reasoning_content or ""
        if not (text or reasoning or delta.tool_calls):
            return None
        self.text.append(text)
        return ChatEvent(id=self.id, text=text, reasoning=reasoning, tool_calls=_calls(delta.tool_calls))

    def completion(self, chunk: Chunk) -> CompleteEvent | None:
        choice = self._choice(chunk)
        if choice is None or not choice.text:
            return None
        return CompleteEvent(id=self.id, text=choice.text)

    def last_chat(self) -> ChatEvent:
        return ChatEvent(id=self.id, finish_reason=_reason(self.finish_reason), usage=_usage(self.usage))

    def last_completion(self) -> CompleteEvent:
        return CompleteEvent(id=self.id, finish_reason=_reason(self.finish_reason), usage=_usage(self.usage))

    def _choice(self, chunk: Chunk) -> Choice | None:
        self.usage = chunk.usage or self.usage
        if not chunk.choices:
            return None
        self.finish_reason = chunk.choices[0].finish_reason or self.finish_reason
        return chunk.choices[0]


def chat_reply(id: str, whole: Chunk) -> ChatReply:
    choice = _only_choice(whole)
    message = choice.message or Message()
    parts = [ContentPart(text=message.content)] if message.content else []
    return ChatReply(
        id=id,
        model=whole.model,
        message=ChatMessage(role=message.role or "assistant", parts=parts, tool_calls=_calls(message.tool_calls)),
        finish_reason=_reason(choice.finish_reason),
        usage=_usage(whole.usage),
    )


def complete_reply(id: str, whole: Chunk) -> CompleteReply:
    choice = _only_choice(whole)
    return CompleteReply(
        id=id,
        model=whole.model,
        text=choice.text or "",
        finish_reason=_reason(choice.finish_reason),
        usage=_usage(whole.usage),
    )


def embed_reply(whole: Chunk) -> EmbedReply:
    vectors = sorted(whole.data, key=lambda vector: vector.index)
    return EmbedReply(
        model=whole.model,
        embeddings=[Embedding(values=vector.embedding) for vector in vectors],
        usage=_usage(whole.usage),
    )


def _only_choice(whole: Chunk) -> Choice:
    if not whole.choices:
        raise BadAnswer("The replica's answer has no choices.")
    return whole.choices[0]


def _calls(calls: Iterable[Call] | None) -> list[ToolCall]:
    return [
        ToolCall(
            index=call.index,
            id=call.id or "",
            name=(call.function.name if call.function else None) or "",
            arguments=(call.function.arguments if call.function else None) or "",
        )
        for call in calls or ()
    ]


def _reason(reason: str | None) -> FinishReason:
    return _REASONS.get(reason or "", FINISH_REASON_STOP)


def _usage(counts: Counts | None) -> Usage | None:
    if counts is None:
        return None
    details = counts.prompt_tokens_details
    return Usage(
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=(details.cached_tokens if details else None) or 0,
        output_tokens=counts.completion_tokens or 0,
    )
