"""Messages of OpenAI's WebSocket mode: any text is a message, or is refused with a field."""

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.transports.websocket import response_words as words

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(["response.create", "response.cancel", "response.resume", "auth", "other"])
FIELDS = st.sampled_from(
    ["stream_id", "generate", "background", "response_id", "starting_after", "key", "model", "input"]
)


def test_a_body_is_as_over_http_and_keeps_its_unknown_fields() -> None:
    text = '{"type":"response.create","stream_id":"s","generate":false,"model":"m","x":1.50,"stream":false}'
    word = words.decode(text)
    assert isinstance(word, words.Create)
    assert (word.stream_id, word.generate) == ("s", False)
    assert word.body == b'{"model":"m","x":1.50,"stream":true}'


def test_an_event_carries_its_stream() -> None:
    assert json.loads(words.event(b'{"a":1}', "s.1")) == {"a": 1, "stream_id": "s.1"}
    assert words.event(b'{"a":1}', None) == b'{"a":1}'


@given(TYPES, st.dictionaries(FIELDS, VALUES, max_size=4))
def test_any_message_is_understood_or_refused(type: str, fields: dict[str, object]) -> None:
    text = json.dumps({"type": type, **fields})
    with suppress(InvalidRequest):
        word = words.decode(text)
        if isinstance(word, words.Create):
            body = json.loads(word.body)
            assert body["stream"] is True
            assert not {"type", "stream_id", "generate", "background"} & body.keys()
    assert words.named(text) == (fields.get("stream_id") if isinstance(fields.get("stream_id"), str) else None)


@given(st.text(max_size=30))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with suppress(InvalidRequest):
        words.decode(text)
    words.named(text)
