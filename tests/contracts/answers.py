"""What a client of any transport was sent, and how a contract reads it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from tests.contracts.hostile import DONE


@dataclass(eq=False)
class Answer:
    """What a client was sent, less its transport's framing. `is_cut`: the client can tell that the rest is missing."""

    status: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    is_cut: bool = False

    @property
    def payload(self) -> bytes:
        return bytes(self.body)

    @property
    def error(self) -> Mapping[str, object]:
        """The error object of an error answer."""
        return _error_object(self.payload)

    def error_behind(self, *events: bytes) -> Mapping[str, object]:
        """The error event of a stream that has these events before it, comments aside, [DONE] and a proper end after
        it, and no finish_reason."""
        assert (self.status, self.is_complete) == (200, True)
        assert b"finish_reason" not in self.payload
        told = [each for each in self.payload.split(b"\n\n") if each and not each.startswith(b":")]
        *content, error, done = (each + b"\n\n" for each in told)
        assert (b"".join(content), done) == (b"".join(events), DONE)
        return _error_object(error.removeprefix(b"data: "))


def _error_object(payload: bytes) -> Mapping[str, object]:
    error = json.loads(payload)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return cast(Mapping[str, object], error)
