"""What of an answer is told otherwise: the service tier that was served, and usage that nobody asked for."""

import json

import pytest

from router import retelling as module
from router.retelling import Retelling

TEXT = b'data: {"id":"c","choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


def told(body: bytes, tier: str | None = "flex", num_pieces: int = 1) -> bytes:
    found, size = Retelling(tier=tier), -(-len(body) // num_pieces)
    passed = b"".join(
        found.piece(body[at : at + size], is_first=at == 0) for at in range(0, max(1, len(body)), size or 1)
    )
    return passed + found.rest()


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "c", "choices": []}',
        b'{"id": "c", "choices": [], "service_tier": null}',
        b'{"service_tier":null,"id":"c","choices":[]}',
    ],
)
@pytest.mark.parametrize("num_pieces", [1, 5])
def test_an_answer_that_says_no_tier_is_told_the_one_that_was_served(body: bytes, num_pieces: int) -> None:
    assert json.loads(told(body, num_pieces=num_pieces)) == {"id": "c", "choices": [], "service_tier": "flex"}


def test_a_tier_that_the_replica_says_stands_and_every_byte_with_it() -> None:
    body = b'{"id" : "c",  "service_tier": "scale"}'
    assert told(body) == body
    event = b'data: {"id":"c", "service_tier": "scale"}\n\n'
    assert Retelling(tier="flex").events(event) == event


@pytest.mark.parametrize("body", [b"", b"[1, 2]", b"not json", b'{"half": ', b"\xff\xfe{}"])
def test_what_is_no_json_object_passes_as_it_is(body: bytes) -> None:
    assert told(body) == body


def test_without_a_wish_nothing_is_held() -> None:
    found = Retelling(hides_usage=True)
    assert found.piece(b'{"id":', is_first=True) == b'{"id":'
    assert found.rest() == b""


def test_a_very_long_answer_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD_BYTES", 10)
    found = Retelling(tier="flex")
    assert found.piece(b'{"a": 1,', is_first=True) == b""
    assert found.piece(b' "b": 2', is_first=False) == b'{"a": 1, "b": 2'
    assert found.piece(b"}", is_first=False) == b"}"
    assert found.rest() == b""


def test_what_an_attempt_left_half_done_is_forgotten_by_the_next() -> None:
    found = Retelling(tier="priority")
    found.piece(b'{"id": "first', is_first=True)
    found.piece(b'{"id": "other"}', is_first=True)
    assert json.loads(found.rest()) == {"id": "other", "service_tier": "priority"}


def test_every_event_of_a_stream_says_the_tier() -> None:
    events = Retelling(tier="flex").events(TEXT + b": a comment\n\n" + USAGE + DONE)
    assert events == (
        b'data: {"service_tier":"flex","id":"c","choices":[{"delta":{"content":"a"}}]}\n\n: a comment\n\n'
        b'data: {"service_tier":"flex","choices":[],"usage":{"prompt_tokens":7}}\n\n' + DONE
    )


def test_events_that_say_nothing_of_it_or_only_in_a_text_are_told_it_once() -> None:
    null = b'data: {"id":"c", "service_tier" : null, "choices":[]}\n\n'
    quoted = b'data: {"id":"c","choices":[{"delta":{"content":"\\"service_tier\\":null"}}]}\n\n'
    empty, failed = b"data: {}\n\n", b'data: {"error": {"message": "m"}}\n\n'
    found = Retelling(tier="default").events(null + quoted + empty + failed)
    one, other, *rest = found.split(b"\n\n")
    assert json.loads(one[6:]) == {"id": "c", "service_tier": "default", "choices": []}
    assert json.loads(other[6:])["service_tier"] == "default"
    assert json.loads(other[6:])["choices"][0]["delta"]["content"] == '"service_tier":null'
    assert rest == [b"data: {}", b'data: {"error": {"message": "m"}}', b""]


def test_usage_is_hidden_and_the_tier_told_at_once() -> None:
    events = Retelling(hides_usage=True, tier="flex").events(TEXT + USAGE + DONE)
    assert events == b'data: {"service_tier":"flex",' + TEXT[7:] + DONE
