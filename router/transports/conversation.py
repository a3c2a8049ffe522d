"""A conversation kept for its client, who sends only what is new; and streaming input: text of the next message is
prefilled while the rest of it is still to come.

Knows OpenAI's chat bodies; knows nothing of sockets, calls or replicas. Prefilling is a request like any other that
asks for one token: it goes to the session's replica, whose cache then holds the prefix that the turn will have.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from router.core import Headers
from router.errors import BodyTooLarge, InvalidRequest
from router.transports.chunks import Choice, Chunk

# Fragments shorter than this are not worth a request of their own.
LEAST_PREFILL_CHARS = 256
# Our own to set: the answer must come in a form that can be kept.
_RESERVED = ("stream", "stream_options", "n")
_PREFILL: Mapping[str, object] = {"max_tokens": 1, "stream": False}


@dataclass(eq=False, slots=True)
class Answering:
    """The assistant's message as it comes, chunk by chunk."""

    text: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        for choice in chunk.choices[:1]:
            self._add(choice)

    def message(self) -> dict[str, object] | None:
        """None where nothing came."""
        calls = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for _, call in sorted(self.calls.items())
        ]
        text = "".join(self.text)
        if not text and not calls:
            return None
        message: dict[str, object] = {"role": "assistant", "content": text or None}
        return message | ({"tool_calls": calls} if calls else {})

    def _add(self, choice: Choice) -> None:
        delta = choice.delta or choice.message
        if delta is None:
            return
        if delta.content:
            self.text.append(delta.content)
        for piece in delta.tool_calls or ():
            call = self.calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
            call["id"] = piece.id or call["id"]
            if piece.function is not None:
                call["name"] = piece.function.name or call["name"]
                call["arguments"] += piece.function.arguments or ""


@dataclass(eq=False, slots=True)
class Conversation:
    """`fields` are those of every body besides the messages; `max_bytes` bounds what is kept. One turn at a time."""

    fields: Mapping[str, object]
    max_bytes: int
    messages: list[object] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"session-{secrets.token_hex(8)}")
    fragment: str = ""
    num_prefilled_chars: int = 0
    is_prefilling: bool = False
    _num_bytes: int = 0
    _num_before_turn: int = 0

    def __post_init__(self) -> None:
        for name in _RESERVED:
            if name in self.fields:
                raise InvalidRequest(f"`{name}` cannot be set in a session.", param=name)
        if not isinstance(self.fields.get("model"), str):
            raise InvalidRequest("The field `model` is required.", param="model")
        self._count(self.messages)

    @property
    def headers(self) -> Headers:
        """What keeps a session on its replica."""
        return (("x-session-id", self.id),)

    def append(self, text: str) -> None:
        """More of the next user message. Raises BodyTooLarge; the fragment is then as before."""
        self._count(text)
        self.fragment += text

    def prefill_body(self) -> bytes | None:
        """The request that computes what was appended since the last; None while that runs or is not worth it."""
        if self.is_prefilling or len(self.fragment) - self.num_prefilled_chars < LEAST_PREFILL_CHARS:
            return None
        self.is_prefilling = True
        self.num_prefilled_chars = len(self.fragment)
        return self._body([*self.messages, self._user_message()], _PREFILL)

    def prefilled(self) -> None:
        """That request has ended, however it did: a turn works without it."""
        self.is_prefilling = False

    def commit(self, messages: Sequence[object] = ()) -> bytes:
        """The next message is whole, and what answers it is asked for. Raises InvalidRequest where nothing was said."""
        added = [*([self._user_message()] if self.fragment else []), *messages]
        if not added:
            raise InvalidRequest("Nothing was said: append text, or commit with messages.", param="messages")
        self._count(messages)
        self._num_before_turn = len(self.messages)
        self.messages += added
        self.fragment, self.num_prefilled_chars = "", 0
        return self._body(self.messages, {"stream": True, "stream_options": {"include_usage": True}})

    def answered(self, answer: Answering) -> None:
        """What came of an answer stays in the history, also where it was cut short. A turn of which nothing came has
        not been: it can be asked again."""
        message = answer.message()
        if message is None:
            self.withdraw()
        else:
            self.messages.append(message)
            self._num_bytes += len(msgspec.json.encode(message))

    def withdraw(self) -> None:
        """Forget what the last commit said."""
        self._num_bytes -= len(msgspec.json.encode(self.messages[self._num_before_turn :]))
        del self.messages[self._num_before_turn :]

    def _user_message(self) -> dict[str, object]:
        return {"role": "user", "content": self.fragment}

    def _body(self, messages: Sequence[object], more: Mapping[str, object]) -> bytes:
        return msgspec.json.encode({**self.fields, "messages": messages, **more})

    def _count(self, more: object) -> None:
        num_bytes = self._num_bytes + len(msgspec.json.encode(more))
        if num_bytes > self.max_bytes:
            raise BodyTooLarge(f"The conversation is over the limit of {self.max_bytes} bytes.", param="messages")
        self._num_bytes = num_bytes

    def __repr__(self) -> str:
        prefilling = ", prefilling" if self.is_prefilling else ""
        return f"<Conversation {self.id} {len(self.messages)} messages, {len(self.fragment)} chars to come{prefilling}>"
