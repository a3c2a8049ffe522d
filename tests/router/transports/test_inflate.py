import gzip

import pytest

from router.core import Headers
from router.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding
from router.heads import KnownHeads, learn_request
from router.transports.inflate import inflater_for
from router.transports.reader import Message, Refusal, RequestReader

MAX_BYTES = 1000
BODY = b'{"model": "m"}'
NEXT = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"


def read(body: bytes, coding: str, step: int = 1000) -> list[Message | Refusal]:
    """What a reader makes of a request with this body and of the next one, fed `step` bytes at a time."""
    head = f"POST / HTTP/1.1\r\nhost: a\r\ncontent-encoding: {coding}\r\ncontent-length: {len(body)}\r\n\r\n"
    sent = head.encode() + body + NEXT
    reader = RequestReader(MAX_BYTES, lambda: None, KnownHeads(learn_request))
    for at in range(0, len(sent), step):
        reader.feed(sent[at : at + step])
    return list(reader.waiting)


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "identity, x-gzip"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_gzip_body_is_inflated_at_any_split_and_its_encoding_is_not_passed_on(coding: str, step: int) -> None:
    message, following = read(gzip.compress(BODY), coding, step)
    assert isinstance(message, Message)
    assert message.body == BODY
    assert "content-encoding" not in dict(message.head.headers)
    assert isinstance(following, Message)
    assert following.head.path == "/health"


@pytest.mark.parametrize("num_bytes", [MAX_BYTES + 1, 400_000])
def test_the_limit_is_on_what_a_body_holds(num_bytes: int) -> None:
    """A small bomb is refused before it grows."""
    packed = gzip.compress(b"\0" * num_bytes)
    assert len(packed) < MAX_BYTES
    (refusal,) = read(packed, "gzip")
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.error, BodyTooLarge)


@pytest.mark.parametrize("packed", [b"not gzip at all", gzip.compress(BODY)[:-3], gzip.compress(BODY) + b"more", b""])
def test_a_broken_gzip_body_is_refused(packed: bytes) -> None:
    (refusal, *_) = read(packed, "gzip")
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.error, InvalidRequest)
    assert "not valid gzip" in refusal.error.message


@pytest.mark.parametrize("headers", [(), (("content-encoding", "identity"),), (("content-encoding", ""),)])
def test_a_plain_body_needs_no_inflater(headers: Headers) -> None:
    assert inflater_for(headers, MAX_BYTES) is None


@pytest.mark.parametrize("codings", ["br", "gzip, br", "gzip, gzip", "deflate"])
def test_any_other_coding_is_named_and_refused(codings: str) -> None:
    with pytest.raises(UnsupportedEncoding, match=codings):
        inflater_for((("content-encoding", codings),), MAX_BYTES)
