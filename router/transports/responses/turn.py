"""One response in the making: what was asked, behind what, and what is told of it. Knows both forms; knows nothing of
where it is stored or of who waits for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from router.transports.dialects.responses_ask import Asked
from router.transports.dialects.responses_tell import ResponseTeller
from router.transports.responses.states import SAID, Kept

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Turn:
    """`before` is the conversation that it follows."""

    owner: str
    asked: Asked
    before: Messages
    teller: ResponseTeller

    def messages(self) -> list[Mapping[str, Any]]:
        """The conversation up to its end."""
        return [*self.before, *self.asked.messages, *self.teller.said()]

    def record(self) -> bytes:
        """What is stored of it as it stands."""
        given = self.asked.ask.input
        items = given if isinstance(given, list) else [_text_item(given or "")]
        return msgspec.json.encode(Kept(self.teller.response(), items, list(self.messages())))


def last_of(teller: ResponseTeller, *, is_stream: bool) -> bytes | None:
    """What ends an answer: the last event, or the body; None where the body is as it was: an error's."""
    if is_stream:
        return teller.last() if teller.has_ended else None
    return msgspec.json.encode(teller.response()) if teller.state in SAID else None


def data_of(event: bytes) -> bytes:
    """What a single SSE event of ours carries."""
    return event.partition(b"\ndata: ")[2].rstrip()


def _text_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
