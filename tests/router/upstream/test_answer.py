from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import BadAnswer
from router.heads import KnownHeads, learn_answer
from router.upstream.answer import Answer, ChunkedAnswer, ParsedAnswer, SizedAnswer, whole_chunks
from router.upstream.exchange import HttpExchange
from tests.router.transports.pipelines import CUTS, split
from tests.router.upstream.fakes import FakeSink, make_attempt, unchunked

CHUNKED = b"HTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Hearing:
    """An answer, and the sink to which it is delivered after each read."""

    def __init__(self, open_answer: Callable[[], Answer]) -> None:
        self.answer, self.sink = open_answer(), FakeSink()
        self.exchange = HttpExchange(make_attempt(), self.sink, lambda _: None)

    def read(self, *reads: bytes) -> "Hearing":
        for read in reads:
            self.answer.feed(read)
            self.answer.deliver(self.exchange)
        return self

    @property
    def end(self) -> tuple[bytes, bool, bool]:
        """The body, whether it is whole, and whether its connection may serve again."""
        return self.sink.body, self.answer.is_complete, self.answer.is_reusable


def sized(length: int, fields: bytes = b"x: y\r\n") -> Hearing:
    found = KnownHeads(learn_answer).find(b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n" % (fields, length))
    assert found is not None
    return Hearing(lambda: SizedAnswer(found))


def chunked(head: bytes = CHUNKED) -> Hearing:
    found = KnownHeads(learn_answer).find(head)
    assert found is not None
    return Hearing(lambda: ChunkedAnswer(found))


def chunk(payload: bytes, size: str = "{:x}", extension: bytes = b"") -> bytes:
    return size.format(len(payload)).encode() + extension + b"\r\n" + payload + b"\r\n"


PAYLOADS = st.binary(min_size=1, max_size=40) | st.sampled_from([b"0\r\n\r\n", b"5\r\nhello\r\n", b"\r\n", b"x" * 300])
SIZES = st.sampled_from(["{:x}", "{:X}", "{:04x}", "{:08x}"])
EXTRA = st.binary(min_size=1, max_size=20).filter(lambda extra: extra.strip(b"\r\n"))  # the parser skips empty lines
PIECES = st.lists(st.tuples(PAYLOADS, SIZES), max_size=5)
EXTENSIONS = st.sampled_from([b"", b"", b"", b";a", b";a=b", b';a="b;c"'])
TRAILERS = st.sampled_from([b"", b"", b"x-sum: 1\r\n", b"a: b\r\nx-length: 9\r\n"])


@st.composite
def chunkings(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """The payload of an answer, and the same in chunks to the last: some with extensions, some with trailers."""
    pieces = draw(st.lists(st.tuples(PAYLOADS, SIZES, EXTENSIONS), max_size=5))
    chunks = b"".join(chunk(payload, size, extension) for payload, size, extension in pieces)
    last = draw(st.sampled_from([b"0", b"00"])) + draw(EXTENSIONS) + b"\r\n" + draw(TRAILERS) + b"\r\n"
    return b"".join(payload for payload, _, _ in pieces), chunks + last


# whole chunks


def test_whole_chunks_are_their_payload_and_their_framing() -> None:
    assert whole_chunks(b"5\r\nhello\r\n") == (b"hello", b"5\r\nhello\r\n", False)
    assert whole_chunks(b"2\r\nhe\r\n3\r\nllo\r\n" + LAST) == (b"hello", b"2\r\nhe\r\n3\r\nllo\r\n", True)
    assert whole_chunks(LAST) == (b"", b"", True)


@pytest.mark.parametrize(
    "data",
    [
        b"5",
        b"5\r",
        b"5\r\nhell",
        b"5\r\nhello",
        b"5\r\nhello\r",
        b"5\r\nhelloxx",
        b"5\r\nhello!\r\n",
        b"5;a=b\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"\r\nhello\r\n",
        b"-1\r\n\r\n",
        b"000000005\r\nhello\r\n",
        b"5\r\nhello\r\n0",
        b"5\r\nhello\r\n0\r\n",
        b"0\r\nx: y\r\n\r\n",
        LAST + b"x",
        LAST + LAST,
        b"hello",
    ],
)
def test_what_is_not_whole_or_not_plain_is_left_to_the_parser(data: bytes) -> None:
    assert whole_chunks(data) is None


@settings(max_examples=200)
@given(PIECES, st.booleans(), st.integers(1, 10**6))
def test_plain_chunks_are_whole_where_they_end_and_nowhere_else(
    pieces: list[tuple[bytes, str]], has_last: bool, cut: int
) -> None:
    chunks = [chunk(payload, size) for payload, size in pieces] + [LAST] * has_last
    whole, framed = b"".join(chunks), b"".join(chunks[: len(pieces)])
    assert whole_chunks(whole) == (b"".join(payload for payload, _ in pieces), framed, has_last)
    ends = {len(b"".join(chunks[:i])) for i in range(len(chunks) + 1)}
    cut %= len(whole) + 1
    assert (whole_chunks(whole[:cut]) is not None) == (cut in ends)


@settings(max_examples=300)
@given(chunkings(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3), CUTS)
def test_whatever_is_taken_for_whole_chunks_another_parser_takes_for_them(
    chunking: tuple[bytes, bytes], noise: list[tuple[int, int]], cuts: list[int]
) -> None:
    spoiled = bytearray(chunking[1])
    for place, byte in noise:
        spoiled[place % len(spoiled)] = byte
    for read in split(bytes(spoiled), cuts):
        whole = whole_chunks(read)
        if whole is not None:
            payload, framed, is_last = whole
            assert unchunked(framed) == payload
            assert read.startswith(framed)
            assert (read[len(framed) :].strip(b"0") == b"\r\n\r\n") if is_last else (read == framed)


# an answer in chunks


def test_chunks_that_come_whole_keep_their_framing() -> None:
    hearing = chunked().read(b"2\r\nhe\r\n", b"1\r\nl\r\n02\r\nlo\r\n", LAST)
    assert hearing.sink.heard == ["head", "body", "body"]
    assert hearing.sink.framed == [b"2\r\nhe\r\n", b"1\r\nl\r\n02\r\nlo\r\n"]
    assert hearing.end == (b"hello", True, True)
    assert (hearing.sink.status, hearing.sink.length, hearing.sink.headers["x"]) == (200, None, "y")


def test_the_last_chunk_may_come_with_others() -> None:
    hearing = chunked().read(b"5\r\nhello\r\n" + LAST)
    assert hearing.sink.framed == [b"5\r\nhello\r\n"]
    assert hearing.end == (b"hello", True, True)


def test_from_the_first_cut_chunk_on_the_parser_has_the_word() -> None:
    hearing = chunked().read(b"2\r\nhe\r\n", b"2\r\nll", b"\r\n", b"1\r\no\r\n", LAST)
    assert hearing.sink.heard == ["head", "body", "body", "body"]
    assert hearing.sink.framed == [b"2\r\nhe\r\n", None, None]
    assert hearing.end == (b"hello", True, True)


def test_a_head_alone_is_delivered_before_any_chunk() -> None:
    hearing = chunked().read(b"")
    assert (hearing.sink.heard, hearing.answer.is_complete) == (["head"], False)


@settings(max_examples=300)
@given(chunkings(), CUTS)
def test_any_split_of_chunks_gives_their_payload(chunking: tuple[bytes, bytes], cuts: list[int]) -> None:
    """That whatever is `framed` decodes to its payload is asserted by the sink."""
    payload, whole = chunking
    assert chunked().read(*split(whole, cuts)).end == (payload, True, True)
    parsed = Hearing(ParsedAnswer).read(*split(CHUNKED + whole, cuts))
    assert parsed.end == (payload, True, True)


@settings(max_examples=200)
@given(chunkings(), CUTS, st.integers(0, 10**6))
def test_chunks_that_are_cut_short_are_not_complete(chunking: tuple[bytes, bytes], cuts: list[int], place: int) -> None:
    payload, whole = chunking
    hearing = chunked().read(*split(whole[: place % len(whole)], cuts))
    assert hearing.end[1:] == (False, False)
    assert payload.startswith(hearing.sink.body)


@settings(max_examples=200)
@given(chunkings(), EXTRA, CUTS)
def test_bytes_behind_the_last_chunk_are_nobodys_and_end_the_connection(
    chunking: tuple[bytes, bytes], extra: bytes, cuts: list[int]
) -> None:
    payload, whole = chunking
    *reads, last = split(whole, cuts)
    assert chunked().read(*reads, last + extra).end == (payload, True, False)


@pytest.mark.parametrize("extra", [b"x", LAST, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 2", b"\0"])
def test_another_answer_behind_the_last_chunk_is_extra_as_well(extra: bytes) -> None:
    assert chunked().read(b"5\r\nhello\r\n" + LAST + extra).end == (b"hello", True, False)
    assert chunked().read(b"5\r\nhel", b"lo\r\n" + LAST + extra).end == (b"hello", True, False)


@pytest.mark.parametrize("reads", [[LAST], [b"1\r\nx\r\n", b"0\r\n", b"\r\n"], [b"1\r", b"\nx\r\n" + LAST]])
def test_chunks_of_the_last_answer_of_a_connection_do_not_keep_it(reads: list[bytes]) -> None:
    hearing = chunked(b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n").read(*reads)
    assert (hearing.answer.is_complete, hearing.answer.is_reusable) == (True, False)


@pytest.mark.parametrize("fault", [b"xyz\r\n", b"-1\r\nx\r\n", b"5\r\nhello!\r\n", b"5\nhello\r\n", b"\0"])
@pytest.mark.parametrize("is_mid_parser", [False, True])
def test_what_came_before_a_faulty_chunk_is_still_delivered(fault: bytes, is_mid_parser: bool) -> None:
    hearing = chunked().read(*([b"1\r\n", b"a\r\n"] if is_mid_parser else [b"1\r\na\r\n"]))
    with pytest.raises(BadAnswer):
        hearing.answer.feed(b"1\r\nb\r\n" + fault)
    hearing.answer.deliver(hearing.exchange)
    assert hearing.sink.body.startswith(b"ab")
    assert not hearing.answer.is_complete


# an answer of known length


@settings(max_examples=150)
@given(st.binary(max_size=60), CUTS)
def test_any_split_of_a_sized_body_gives_it(body: bytes, cuts: list[int]) -> None:
    hearing = sized(len(body)).read(b"", *split(body, cuts))  # the head came alone, or its rest is empty
    assert hearing.end == (body, True, True)
    assert (hearing.sink.heard[0], hearing.sink.heard.count("head")) == ("head", 1)
    assert (hearing.sink.status, hearing.sink.length, hearing.sink.headers) == (200, len(body), {"x": "y"})
    assert set(hearing.sink.framed) <= {None}


@given(st.binary(min_size=1, max_size=60), CUTS, st.integers(0, 10**6))
def test_a_sized_body_that_is_cut_short_is_not_complete(body: bytes, cuts: list[int], place: int) -> None:
    short = body[: place % len(body)]
    assert sized(len(body)).read(*split(short, cuts)).end == (short, False, False)


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=20), CUTS)
def test_bytes_behind_a_sized_body_are_nobodys_and_end_the_connection(
    body: bytes, extra: bytes, cuts: list[int]
) -> None:
    *reads, last = split(body, cuts) or [b""]
    assert sized(len(body)).read(*reads, last + extra).end == (body, True, False)


def test_a_sized_body_of_the_last_answer_of_a_connection_does_not_keep_it() -> None:
    for length in (0, 1):
        assert sized(length, b"connection: close\r\n").read(b"x" * length).end == (b"x" * length, True, False)


# any answer


@pytest.mark.parametrize("when", ["head", "body"])
@pytest.mark.parametrize("form", ["sized", "whole chunks", "cut chunks", "parsed"])
def test_a_sink_that_aborts_is_told_nothing_more(form: str, when: str) -> None:
    hearing, reads = {
        "sized": (sized(5), [b"hel", b"lo"]),
        "whole chunks": (chunked(), [b"2\r\nhe\r\n", b"3\r\nllo\r\n"]),
        "cut chunks": (chunked(), [b"5\r\nhe", b"llo\r\n"]),
        "parsed": (Hearing(ParsedAnswer), [CHUNKED + b"2\r\nhe\r\n", b"3\r\nllo\r\n"]),
    }[form]
    hearing.sink.on_each = lambda word: hearing.exchange.abort() if word == when else None
    hearing.read(*reads)
    assert hearing.sink.heard == ["head", "body"][: 1 + (when == "body")]


@pytest.mark.parametrize(
    ("value", "idle_s"),
    [("timeout=5", 4.0), ("timeout=10, max=100", 8.0), ("max=3, timeout=0", 0.0), ("max=3", None), ("timeout=x", None)],
)
def test_an_answer_says_how_long_its_connection_may_idle(value: str, idle_s: float | None) -> None:
    fields = b"keep-alive: %s\r\n" % value.encode()
    assert sized(1, fields).answer.idle_s == idle_s
    assert chunked(b"HTTP/1.1 200 OK\r\n%stransfer-encoding: chunked\r\n\r\n" % fields).answer.idle_s == idle_s
    parsed = Hearing(ParsedAnswer).read(b"HTTP/1.1 200 OK\r\n%scontent-length: 1\r\n\r\na" % fields)
    assert parsed.answer.idle_s == idle_s
