from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.heads import KnownHeads, RequestHead, learn_request
from router.transports.reader import MAX_HEAD_BYTES, Message, Refusal, RequestReader
from tests.router.transports.pipelines import CUTS, NEXT, PIPELINES, by_h11, requests, split

MAX_BODY_BYTES = 1000
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
H2C = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n"


class Reading:
    """A reader and what it asked for."""

    def __init__(self, *reads: bytes, known: KnownHeads[RequestHead] | None = None) -> None:
        self.num_expects = 0
        self.reader = RequestReader(MAX_BODY_BYTES, self._on_expect, known or KnownHeads(learn_request))
        for read in reads:
            self.reader.feed(read)

    def _on_expect(self) -> None:
        self.num_expects += 1

    @property
    def messages(self) -> list[Message]:
        assert all(isinstance(item, Message) for item in self.reader.waiting), self.reader.waiting
        return [item for item in self.reader.waiting if isinstance(item, Message)]

    @property
    def refusal(self) -> Refusal:
        """The last word of the reader."""
        last = self.reader.waiting[-1]
        assert isinstance(last, Refusal), last
        return last


def warm(*heads: bytes) -> KnownHeads[RequestHead]:
    """Heads that came before, each in a whole read of its own."""
    known = KnownHeads(learn_request)
    for head in heads:
        Reading(head, known=known)
    return known


def framed(messages: Iterable[Message]) -> list[tuple[str, bytes, bytes]]:
    return [(message.head.method, message.head.target, message.body) for message in messages]


def test_a_request_becomes_a_message() -> None:
    head = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nX-Odd: caf\xe9\r\nX-Empty:\r\nContent-Length: 2\r\n\r\n"
    (message,) = Reading(head + b"ab").messages
    assert message.head == RequestHead(
        method="POST",
        target=b"/v1/completions?x=1",
        version="1.1",
        headers=(("host", "a"), ("x-odd", "café"), ("x-empty", "")),
        keeps_alive=True,
        path="/v1/completions",
    )
    assert message.body == b"ab"


@pytest.mark.parametrize(
    ("version", "connection", "keeps_alive"),
    [
        ("1.1", "", True),
        ("1.1", "connection: close\r\n", False),
        ("1.1", "connection: keep-alive\r\n", True),
        ("1.0", "", False),
        ("1.0", "connection: keep-alive\r\n", True),
    ],
)
def test_a_connection_lives_on_as_its_client_says(version: str, connection: str, keeps_alive: bool) -> None:
    (message,) = Reading(f"GET / HTTP/{version}\r\nhost: a\r\n{connection}\r\n".encode()).messages
    assert (message.head.version, message.head.keeps_alive) == (version, keeps_alive)


def test_chunks_are_joined_and_their_extensions_and_trailers_dropped() -> None:
    (message,) = Reading(CHUNKED + b"3;note=x\r\nabc\r\nA\r\n0123456789\r\n0\r\nhost: evil\r\n\r\n").messages
    assert message.body == b"abc0123456789"
    assert ("host", "evil") not in message.head.headers


def test_a_pipeline_keeps_its_order() -> None:
    whole = POST + b"content-length: 2\r\n\r\nab" + NEXT + CHUNKED + b"1\r\nc\r\n0\r\n\r\n" + NEXT
    assert [body for _, _, body in framed(Reading(whole).messages)] == [b"ab", b"", b"c", b""]


def test_empty_lines_between_requests_are_skipped() -> None:
    assert framed(Reading(b"\r\n\r\n" + NEXT + b"\r\n" + NEXT).messages) == [("GET", b"/next", b"")] * 2


# name: bytes that two parsers could frame differently, or that are no HTTP. Each is refused, with all that follows.
SMUGGLING: dict[str, bytes] = {
    "two equal lengths": POST + b"content-length: 2\r\ncontent-length: 2\r\n\r\nab",
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"content-length: 2, 2\r\n\r\nab",
    "a length and chunks": POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "an empty length": POST + b"content-length:\r\n\r\n",
    "a signed length": POST + b"content-length: +2\r\n\r\nab",
    "a negative length": POST + b"content-length: -2\r\n\r\nab",
    "a hexadecimal length": POST + b"content-length: 0x2\r\n\r\nab",
    "a length with an underscore": POST + b"content-length: 1_0\r\n\r\n0123456789",
    "a length beyond 64 bits": POST + b"content-length: 99999999999999999999999\r\n\r\n",
    "chunks twice": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that are not last": POST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "another transfer coding": POST + b"transfer-encoding: gzip\r\n\r\n0\r\n\r\n",
    "almost chunked": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked behind a tab": POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "identity and a length": POST + b"transfer-encoding: identity\r\ncontent-length: 2\r\n\r\nab",
    "bare line feeds": b"POST / HTTP/1.1\nhost: a\ncontent-length: 2\n\nab",
    "one bare line feed": POST + b"x: y\ncontent-length: 2\r\n\r\nab",
    "a bare carriage return": POST + b"x: a\rcontent-length: 2\r\n\r\nab",
    "a folded line": POST + b"x: y\r\n z\r\n\r\n",
    "a folded length": POST + b"content-length:\r\n 2\r\n\r\nab",
    "a space before the colon": POST + b"content-length : 2\r\n\r\nab",
    "a space before the name": b"POST / HTTP/1.1\r\n host: a\r\n\r\n",
    "a line without a colon": POST + b"content-length\r\n\r\n",
    "NUL in a value": POST + b"x: a\0b\r\n\r\n",
    "NUL in a name": POST + b"x\0y: ab\r\n\r\n",
    "NUL in the target": b"GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n",
    "a chunk size of letters": CHUNKED + b"xyz\r\nabc\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "a chunk size with a prefix": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": CHUNKED + b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "a chunk size ended by a line feed": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "no chunk size": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "two hosts": POST + b"host: b\r\n\r\n",
    "two equal hosts": POST + b"host: a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "an unknown method": b"FOO / HTTP/1.1\r\nhost: a\r\n\r\n",
    "HTTP/2.0 in a head": b"GET / HTTP/2.0\r\nhost: a\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "noise": b"\xff\xfe\xfd",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_what_cannot_be_framed_with_certainty_is_refused(name: str) -> None:
    reading = Reading(SMUGGLING[name] + NEXT, NEXT)
    assert list(reading.reader.waiting) == [reading.refusal]
    assert reading.refusal.error.status == 400


@pytest.mark.parametrize("name", SMUGGLING)
def test_it_is_refused_as_well_when_it_comes_byte_by_byte_after_a_request(name: str) -> None:
    whole = NEXT + SMUGGLING[name] + NEXT
    reading = Reading(*(whole[i : i + 1] for i in range(len(whole))))
    assert reading.reader.waiting[0] == Reading(NEXT).reader.waiting[0]
    assert reading.refusal.error.status == 400
    assert len(reading.reader.waiting) == 2


@pytest.mark.parametrize("name", SMUGGLING)
def test_it_is_refused_as_well_by_a_reader_that_knows_the_heads(name: str) -> None:
    known = warm(SMUGGLING[name], NEXT, POST + b"\r\n", POST + b"content-length: 2\r\n\r\nab", CHUNKED)
    reading = Reading(NEXT + SMUGGLING[name] + NEXT, NEXT, known=known)
    assert [type(item) for item in reading.reader.waiting] == [Message, Refusal]
    assert reading.refusal.error.status == 400


def test_a_tunnel_is_refused_with_its_bytes() -> None:
    reading = Reading(b"CONNECT b:443 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab" + NEXT)
    assert reading.refusal.error.status == 405
    assert len(reading.reader.waiting) == 1


def test_http_1_0_needs_no_host() -> None:
    assert framed(Reading(b"GET / HTTP/1.0\r\n\r\n").messages) == [("GET", b"/", b"")]


# limits


@pytest.mark.parametrize("num_reads", [1, 50])
def test_an_oversized_head_is_refused(num_reads: int) -> None:
    piece = b"x: " + b"a" * (MAX_HEAD_BYTES // num_reads) + b"\r\n"
    reading = Reading(b"GET / HTTP/1.1\r\nhost: a\r\n", *[piece] * num_reads)
    assert reading.refusal.error.status == 431


def test_an_oversized_head_is_refused_before_it_ends() -> None:
    reading = Reading(b"GET /", b"a" * (MAX_HEAD_BYTES + 1))
    assert reading.refusal.error.status == 431


def test_an_oversized_head_that_comes_whole_is_refused_as_well() -> None:
    assert Reading(POST + b"x: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n").refusal.error.status == 431


def test_trailers_without_end_are_refused() -> None:
    reading = Reading(CHUNKED + b"1\r\na\r\n0\r\nx: ", *[b"y" * 10_000] * 7)
    assert reading.refusal.error.status == 431


def test_a_chunk_extension_without_end_is_refused() -> None:
    reading = Reading(CHUNKED + b"1;x=", *[b"y" * 10_000] * 7)
    assert reading.refusal.error.status == 431


def test_many_requests_in_a_row_are_no_oversized_head() -> None:
    reading = Reading(*[NEXT * 1000] * 4)
    assert len(reading.messages) == 4000


def test_a_body_of_the_limit_passes_and_one_byte_more_is_refused() -> None:
    most, size = b"x" * MAX_BODY_BYTES, MAX_BODY_BYTES
    assert Reading(POST + b"content-length: %d\r\n\r\n%s" % (size, most)).messages[0].body == most
    assert Reading(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (size, most)).messages[0].body == most
    assert Reading(POST + b"content-length: %d\r\n\r\n" % (size + 1)).refusal.error.status == 413
    assert Reading(CHUNKED + b"%x\r\n%sx" % (size + 1, most)).refusal.error.status == 413


def test_the_bytes_of_bodies_that_wait_are_counted() -> None:
    reader = Reading(POST + b"content-length: 2\r\n\r\nab" + NEXT + CHUNKED + b"1\r\nc\r\n0\r\n\r\n").reader
    assert reader.num_bytes == 3


def test_a_reader_says_where_in_a_request_it_is() -> None:
    reader = Reading().reader
    seen = []
    for read in (b"POST / HT", b"TP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n", b"a", b"b", b"G"):
        reader.feed(read)
        seen.append((reader.is_mid_message, reader.is_in_head))
    assert seen == [(True, True), (True, False), (True, False), (False, False), (True, True)]


def test_a_body_in_many_small_chunks_is_measured_as_a_whole() -> None:
    assert Reading(CHUNKED, *[b"1\r\nx\r\n"] * (MAX_BODY_BYTES + 1)).refusal.error.status == 413


@pytest.mark.parametrize("value", ["br", "deflate", "gzip, br", "gzip, gzip"])
def test_a_body_in_another_encoding_than_gzip_is_refused(value: str) -> None:
    head = POST + f"content-encoding: identity\r\ncontent-encoding: {value}\r\n\r\n".encode()
    assert Reading(head).refusal.error.status == 415


def test_a_body_encoded_as_itself_is_a_body() -> None:
    assert Reading(POST + b"content-encoding: Identity\r\ncontent-length: 1\r\n\r\na").messages[0].body == b"a"


def test_requests_before_a_refusal_are_still_answered() -> None:
    reading = Reading(NEXT + NEXT + b"nonsense\r\n\r\n" + NEXT)
    assert [type(item) for item in reading.reader.waiting] == [Message, Message, Refusal]


# expect, and offers to upgrade


def test_a_client_that_expects_a_go_ahead_is_told_of_once() -> None:
    assert Reading(POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n").num_expects == 1
    assert Reading(POST + b"Expect: 100-Continue\r\n" + H2C + b"content-length: 2\r\n\r\n").num_expects == 1
    assert Reading(POST + b"content-length: 2\r\n\r\n").num_expects == 0


def test_a_refused_body_gets_no_go_ahead() -> None:
    assert Reading(POST + b"expect: 100-continue\r\ncontent-length: 5000\r\n\r\n").num_expects == 0


def test_a_request_that_must_wait_its_turn_gets_no_go_ahead() -> None:
    assert Reading(NEXT + POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n").num_expects == 0


BODIES = {
    "no body": (b"\r\n", b""),
    "an empty body": (b"content-length: 0\r\n\r\n", b""),
    "a body": (b"content-length: 2\r\n\r\nab", b"ab"),
    "a body like a request": (b"content-length: %d\r\n\r\n%s" % (len(NEXT), NEXT), NEXT),
    "chunks": (b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n", b"ab"),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("is_split", [False, True])
def test_an_offer_to_upgrade_is_declined_and_its_body_framed_as_any_other(name: str, is_split: bool) -> None:
    rest, body = BODIES[name]
    whole = POST + H2C + rest + NEXT
    reads = [whole[i : i + 1] for i in range(len(whole))] if is_split else [whole]
    assert framed(Reading(*reads).messages) == [("POST", b"/v1/chat/completions", body), ("GET", b"/next", b"")]


@pytest.mark.parametrize("name", BODIES)
def test_an_upgrade_that_no_connection_names_is_a_header_as_any_other(name: str) -> None:
    """The fault, found by atheris: such a request with an empty body was never answered."""
    rest, body = BODIES[name]
    messages = Reading(POST + b"upgrade: h2c\r\n" + rest + NEXT).messages
    assert framed(messages) == [("POST", b"/v1/chat/completions", body), ("GET", b"/next", b"")]


@pytest.mark.parametrize(
    ("version", "connection", "keeps_alive"),
    [("1.1", "upgrade", True), ("1.1", "close, upgrade", False), ("1.0", "keep-alive, upgrade", True)],
)
def test_a_declined_offer_keeps_what_the_client_said_of_the_connection(
    version: str, connection: str, keeps_alive: bool
) -> None:
    head = f"POST / HTTP/{version}\r\nhost: a\r\nconnection: {connection}\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\n"
    assert [message.head.keeps_alive for message in Reading(head.encode() + b"x").messages] == [keeps_alive]


# any split, and another parser's opinion


@settings(max_examples=150)
@given(PIPELINES, CUTS)
def test_any_split_of_a_pipeline_into_reads_gives_the_same_messages(pipeline: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(pipeline)
    messages = Reading(*split(whole, cuts)).messages
    assert messages == Reading(whole).messages
    assert len(messages) == len(pipeline)


@settings(max_examples=150)
@given(PIPELINES, CUTS)
def test_a_reader_that_knows_the_heads_reads_the_same_in_any_split(pipeline: list[bytes], cuts: list[int]) -> None:
    """Byte by byte no head is whole in a read: all goes through the parser."""
    whole = b"".join(pipeline)
    parsed = Reading(*(whole[i : i + 1] for i in range(len(whole))), known=KnownHeads(lambda _: None)).messages
    known = warm(*pipeline)
    assert Reading(*split(whole, cuts), known=known).messages == parsed
    assert Reading(*pipeline, known=known).messages == parsed


@settings(max_examples=150)
@given(PIPELINES, st.binary(max_size=30), CUTS)
def test_a_reader_that_knows_the_heads_frames_the_same_head_with_another_body(
    pipeline: list[bytes], body: bytes, cuts: list[int]
) -> None:
    sized = POST + b"Content-Length: %d\r\n\r\n%s"
    known = warm(sized % (2, b"ab"), *pipeline)
    whole = sized % (len(body), body) + b"".join(pipeline) + sized % (len(body), body)
    messages = Reading(*split(whole, cuts), known=known).messages
    assert framed(messages) == by_h11(whole)


def test_a_known_head_is_not_taken_apart_again() -> None:
    known = warm(NEXT)
    first, second = Reading(NEXT, NEXT, known=known).messages
    assert first.head is second.head


@pytest.mark.parametrize("cut", range(len(b"POST")))
def test_a_body_like_a_request_is_a_body_however_it_is_cut(cut: int) -> None:
    whole = POST + b"content-length: %d\r\n\r\n" % len(NEXT)
    reads = [whole + NEXT[:cut], NEXT[cut:] + NEXT]
    assert [body for _, _, body in framed(Reading(*reads, known=warm(NEXT, whole)).messages)] == [NEXT, b""]


def test_a_known_head_with_too_long_a_body_is_refused() -> None:
    known = warm(POST + b"content-length: 2\r\n\r\nab")
    reading = Reading(NEXT + POST + b"content-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), NEXT, known=known)
    assert [type(item) for item in reading.reader.waiting] == [Message, Refusal]
    assert reading.refusal.error.status == 413


@pytest.mark.parametrize("is_warm", [False, True])
def test_what_follows_a_request_that_said_close_is_refused(is_warm: bool) -> None:
    last = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    reading = Reading(last + NEXT, known=warm(last, NEXT) if is_warm else None)
    assert [type(item) for item in reading.reader.waiting] == [Message, Refusal]


@settings(max_examples=150)
@given(PIPELINES)
def test_another_parser_frames_a_valid_pipeline_as_we_do(pipeline: list[bytes]) -> None:
    whole = b"".join(pipeline)
    assert framed(Reading(whole).messages) == by_h11(whole)


@settings(max_examples=150)
@given(requests(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4))
def test_no_noise_does_more_than_be_refused(request_bytes: bytes, noise: list[tuple[int, int]]) -> None:
    spoiled = bytearray(request_bytes)
    for place, byte in noise:
        spoiled[place % len(spoiled)] = byte
    reader = Reading(bytes(spoiled) + NEXT).reader
    refusals = [item for item in reader.waiting if isinstance(item, Refusal)]
    assert len(refusals) <= 1
    assert refusals == [item for item in list(reader.waiting)[-1:] if isinstance(item, Refusal)]
