"""What of an answer is told otherwise than its replica said it: usage that only the router asked for is left out, and
the service tier in which a request was served is put in, where the client named one. Knows OpenAI's words, no sockets.

A replica's own word on the tier stands: a provider knows what it served.
"""

import re
from dataclasses import dataclass

import msgspec

from router import openai

# An answer that is one JSON object is held back up to here, as its length changes; a longer one passes as it is.
MOST_HELD_BYTES = 4 * 1024 * 1024
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TIER = b'"service_tier"'
_NO_TIER = re.compile(rb'"service_tier"\s*:\s*null')
# Of an object that has fields, and is none that tells an error.
_EVENT_START = re.compile(rb'^data: ?\{(?=\s*"(?!error"))', re.MULTILINE)


@dataclass(eq=False, slots=True)
class Retelling:
    """Of one request's answer; `tier` is None where it is nobody's wish to know it."""

    hides_usage: bool = False
    tier: str | None = None
    _held: bytes = b""

    def events(self, whole: bytes) -> bytes:
        """Whole SSE events."""
        if self.hides_usage:
            whole = openai.without_usage(whole)
        return whole if self.tier is None else _with_tier(whole, self.tier)

    def piece(self, payload: bytes, *, is_first: bool) -> bytes:
        """What of an answer that is one JSON object may pass now; the rest comes with `rest`."""
        if self.tier is None:
            return payload
        if is_first:
            self._held = b""  # an attempt before this one may have failed half-way
        held, self._held = self._held + payload, b""
        if len(held) > MOST_HELD_BYTES:
            self.tier = None
            return held
        self._held = held
        return b""

    def rest(self) -> bytes:
        """What was held back, all of the answer or nothing."""
        held, self._held = self._held, b""
        if self.tier is None or not held:
            return held
        try:
            fields = _FIELDS.decode(held)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return held
        if bytes(fields.get("service_tier", b"null")) != b"null":
            return held
        fields["service_tier"] = msgspec.Raw(msgspec.json.encode(self.tier))
        return msgspec.json.encode(fields)


def _with_tier(events: bytes, tier: str) -> bytes:
    word = msgspec.json.encode(tier)
    if _TIER in events:
        parts = openai.split_events(events)
        return b"".join([_event_with_tier(event, word) for event in parts])
    return _EVENT_START.sub(lambda found: found[0] + _TIER + b":" + word + b",", events)


def _event_with_tier(event: bytes, word: bytes) -> bytes:
    """One that may say the tier itself. Within a text its quotes would be escaped."""
    if _NO_TIER.search(event):
        return _NO_TIER.sub(lambda _: _TIER + b":" + word, event, count=1)
    if _TIER + b":" in event or _TIER + b" :" in event:
        return event
    return _EVENT_START.sub(lambda found: found[0] + _TIER + b":" + word + b",", event)
