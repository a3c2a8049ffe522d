"""Request bodies of the two inference routes. Knows OpenAI's request shape; knows nothing of sockets or workloads."""

from dataclasses import dataclass

import msgspec

from loadtest.settings import Server

_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a conversation's history."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A request ready to send: route, encoded body, whether the answer is a stream, words in its prompt."""

    path: str
    body: bytes
    is_streamed: bool
    num_words: int


@dataclass(frozen=True, slots=True)
class Wire:
    """How a history becomes a request."""

    model: str
    endpoint: str
    is_streamed: bool
    ignore_eos: bool

    def ask(self, history: tuple[Message, ...], max_tokens: int, user: str | None = None) -> Ask:
        """Encode a request for the answer to `history`, of at most `max_tokens`."""
        body: dict[str, object] = {"model": self.model, "max_tokens": max_tokens, "stream": self.is_streamed}
        if self.endpoint == "chat":
            body["messages"] = history
        else:
            body["prompt"] = "\n".join(message.content for message in history)
        if self.is_streamed:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if user is not None:
            body["user"] = user
        num_words = sum(message.content.count(" ") + 1 for message in history)
        return Ask(_PATHS[self.endpoint], msgspec.json.encode(body), self.is_streamed, num_words)


def wire(settings: Server, model: str, is_streamed: bool = True) -> Wire:
    """The wire shape that the settings ask for."""
    return Wire(model, settings.endpoint, is_streamed, settings.ignore_eos)
