from collections.abc import Sequence
from functools import partial
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core import Headers
from router.heads import (
    MAX_KNOWN,
    MAX_KNOWN_BYTES,
    AnswerHead,
    Found,
    H,
    KnownHeads,
    RequestHead,
    learn_answer,
    learn_request,
)

POST = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\n"
OK = b"HTTP/1.1 200 OK\r\n"

requests = partial(KnownHeads, learn_request)
answers = partial(KnownHeads, learn_answer)


class Parsed:
    """A message as httptools takes it, fed piece by piece."""

    def __init__(self, *, is_request: bool) -> None:
        self.parser: Any = (httptools.HttpRequestParser if is_request else httptools.HttpResponseParser)(self)
        self.target, self.pairs = b"", list[tuple[str, str]]()
        self.is_valid, self.keeps_alive, self.num_ended = True, False, 0

    def feed(self, data: bytes) -> "Parsed":
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_valid = False
        return self

    @property
    def headers(self) -> Headers:
        return tuple(pair for pair in self.pairs if pair[0] != "content-length")

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pairs.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.keeps_alive = self.parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self.num_ended += 1


def find(known: KnownHeads[H], data: bytes) -> Found[H] | None:
    """What is found in a head, the same when it is new and when it is known."""
    found = known.find(data)
    assert known.find(data) == found
    return found


def test_a_request_is_found_with_its_length_and_without_what_follows() -> None:
    data = POST + b"X-Odd: caf\xe9\r\nContent-Length: 12\r\n\r\nabc"
    assert find(requests(), data) == Found(
        RequestHead("POST", b"/v1/completions?x=1", "1.1", (("host", "a"), ("x-odd", "café")), True, "/v1/completions"),
        12,
        data.index(b"abc"),
    )


def test_a_request_without_a_length_has_no_body() -> None:
    data = b"GET / HTTP/1.1\r\nhost: a\r\n\r\nPOST"
    assert find(requests(), data) == Found(
        RequestHead("GET", b"/", "1.1", (("host", "a"),), True, "/"), 0, len(data) - 4
    )


def test_an_answer_is_found_with_its_length_or_its_chunks() -> None:
    sized = OK + b"content-length: 3\r\nx: y\r\n\r\nabc"
    assert find(answers(), sized) == Found(AnswerHead(200, (("x", "y"),), True, False), 3, len(sized) - 3)
    chunked = OK + b"Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n"
    fields = (("transfer-encoding", "Chunked"),)
    assert find(answers(), chunked) == Found(AnswerHead(200, fields, True, True), 0, len(chunked) - 5)


@pytest.mark.parametrize(
    "lines", [b"content-length: 0\r\n", b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n"]
)
def test_an_answer_that_says_close_is_found_as_such(lines: bytes) -> None:
    found = find(answers(), OK + b"connection: close\r\n" + lines + b"\r\n")
    assert found is not None
    assert not found.head.keeps_alive


def test_a_head_is_known_by_all_but_its_length() -> None:
    learned: list[bytes] = []

    def learn(data: bytes) -> tuple[RequestHead, int] | None:
        learned.append(data)
        return learn_request(data)

    known = KnownHeads(learn)
    first = known.find(POST + b"Content-Length: 5\r\n\r\n")
    second = known.find(POST + b"Content-Length: 1234567\r\n\r\n")
    assert first is not None
    assert second is not None
    assert (first.length, second.length) == (5, 1234567)
    assert first.head is second.head
    assert known.find(POST + b"Content-Length: 5\r\nx: y\r\n\r\n") != first
    assert len(learned) == 2


# lengths


@pytest.mark.parametrize("name", ["Content-Length", "content-length", "Content-length", "content-Length"])
@pytest.mark.parametrize("digits", ["0", "5", "007", "999999999999999"])
def test_a_length_on_a_line_of_its_own_is_read(name: str, digits: str) -> None:
    line = f"{name}: {digits}\r\n".encode()
    for rest in (b"\r\n", b"x: y\r\n\r\n"):
        request, answer = find(requests(), POST + line + rest), find(answers(), OK + line + rest)
        assert request is not None
        assert answer is not None
        assert request.length == answer.length == int(digits)


@pytest.mark.parametrize(
    "line",
    [
        b"CONTENT-LENGTH: 5",
        b"cOnTeNt-LeNgTh: 5",
        b"CONTENT-Length: 5",
        b"Content-Length:5",
        b"Content-Length:  5",
        b"Content-Length:\t5",
        b"Content-Length: 5 ",
        b"Content-Length: 5\t",
    ],
)
def test_a_length_in_an_odd_spelling_is_never_overlooked(line: bytes) -> None:
    """As a head without a length it would make a request of its body."""
    for data in (POST + line + b"\r\n\r\nhello", POST + line + b"\r\nX-Content-Length: 7\r\n\r\nhello"):
        found = find(requests(), data)
        assert found is None or found.length == 5
    found_answer = find(answers(), OK + line + b"\r\n\r\nhello")
    assert found_answer is None or found_answer.length == 5


# name: the lines of a head, behind an ordinary first line and host, that a length alone does not frame with certainty
UNUSUAL: dict[str, bytes] = {
    "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "another coding and a length": b"Transfer-Encoding: gzip\r\nContent-Length: 5\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "two lengths in two spellings": b"Content-Length: 5\r\ncontent-length: 6\r\n",
    "two lengths in odd spellings": b"Content-Length: 5\r\nCONTENT-LENGTH:6\r\n",
    "two equal lengths": b"content-length: 5\r\nContent-Length: 5\r\n",
    "a list of lengths": b"Content-Length: 5, 5\r\n",
    "a signed length": b"Content-Length: +5\r\n",
    "a negative length": b"Content-Length: -5\r\n",
    "a length with an underscore": b"Content-Length: 1_0\r\n",
    "a length with a space": b"Content-Length: 1 0\r\n",
    "a length with a tab": b"Content-Length: \t5\r\n",
    "a hexadecimal length": b"Content-Length: 0x5\r\n",
    "an empty length": b"Content-Length: \r\n",
    "a length of other digits": "Content-Length: \u0665\r\n".encode(),
    "a length of latin-1 digits": b"Content-Length: \xb2\r\n",
    "a length beyond 64 bits": b"Content-Length: 99999999999999999999999\r\n",
    "a folded length": b"Content-Length:\r\n 5\r\n",
    "a length folded on": b"Content-Length: 5\r\n 6\r\n",
    "a folded line": b"x: y\r\n z\r\nContent-Length: 5\r\n",
    "a bare line feed before": b"x: y\nContent-Length: 5\r\n",
    "a bare line feed behind": b"Content-Length: 5\nx: y\r\n",
    "a bare carriage return": b"Content-Length: 5\rx: y\r\n",
    "a space before the colon": b"Content-Length : 5\r\n",
    "NUL": b"x: a\0b\r\nContent-Length: 5\r\n",
}
UNUSUAL_IN_REQUESTS: dict[str, bytes] = {
    "chunks": b"Transfer-Encoding: chunked\r\n",
    "another host": b"Host: b\r\nContent-Length: 5\r\n",
    "the same host again": b"Host: a\r\nContent-Length: 5\r\n",
    "an offer to upgrade": b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n",
    "an offer without a connection": b"Upgrade: h2c\r\nContent-Length: 5\r\n",
    "a body that waits": b"Expect: 100-continue\r\nContent-Length: 5\r\n",
    "an encoded body": b"Content-Encoding: gzip\r\nContent-Length: 5\r\n",
    "the last request": b"Connection: close\r\nContent-Length: 5\r\n",
}


@pytest.mark.parametrize("name", UNUSUAL | UNUSUAL_IN_REQUESTS)
def test_an_unusual_request_is_not_recognised(name: str) -> None:
    lines = (UNUSUAL | UNUSUAL_IN_REQUESTS)[name]
    known = requests()
    known.find(POST + b"Content-Length: 5\r\n\r\n")
    known.find(POST + b"\r\n")
    assert find(known, POST + lines + b"\r\n") is None
    assert find(known, POST + b"x: y\r\n" + lines + b"z: z\r\n\r\n") is None


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_answer_is_not_recognised(name: str) -> None:
    assert find(answers(), OK + UNUSUAL[name] + b"\r\n") is None
    assert find(answers(), OK + b"x: y\r\n" + UNUSUAL[name] + b"z: z\r\n\r\n") is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: a\r\n\r\n",
        b"CONNECT b:1 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"FOO / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        OK + b"content-length: 5\r\n\r\n",
    ],
)
def test_what_is_no_ordinary_request_is_not_recognised(head: bytes) -> None:
    assert find(requests(), head) is None


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 100 Continue\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
        OK + b"x: y\r\n\r\n",
        OK + b"transfer-encoding: gzip\r\n\r\n",
        OK + b"transfer-encoding: chunked, gzip\r\n\r\n",
        POST + b"content-length: 5\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_no_ordinary_answer_is_not_recognised(head: bytes) -> None:
    assert find(answers(), head) is None


@pytest.mark.parametrize("lines", [b"X-Content-Length: 5\r\n", b"x: ontent-Length: 5\r\n", b"x: Content-Length: 5\r\n"])
def test_a_length_that_is_part_of_something_else_is_none(lines: bytes) -> None:
    for data in (POST + lines + b"\r\n", POST + lines + b"Content-Length: 7\r\n\r\n"):
        found, has_length = find(requests(), data), b"\r\nContent-Length" in data
        assert found is None or found.length == (7 if has_length else 0)
    assert find(answers(), OK + lines + b"\r\n") is None


def test_another_header_is_never_taken_for_the_length_that_was_cut_out() -> None:
    known = requests()
    find(known, POST + b"X-Content-Length: 5\r\nContent-Length: 5\r\n\r\n")
    found = find(known, POST + b"X-Content-Length: 0\r\nContent-Length: 5\r\n\r\n")
    assert found is None or found.length == 5


# limits


@pytest.mark.parametrize("cut", range(1, len(POST) + 22))
def test_half_a_head_is_not_recognised(cut: int) -> None:
    whole = POST + b"Content-Length: 5\r\n\r\n"
    assert (find(requests(), whole[:cut]) is not None) == (cut >= len(whole))


def test_a_large_head_is_not_recognised() -> None:
    for num_bytes, is_found in ((MAX_KNOWN_BYTES, True), (MAX_KNOWN_BYTES + 1, False)):
        padding = b"x: " + b"y" * (num_bytes - len(POST) - 3 - 4) + b"\r\n\r\n"
        assert len(POST + padding) == num_bytes
        assert (find(requests(), POST + padding) is not None) == is_found


def test_however_many_heads_come_few_are_kept() -> None:
    known = requests()
    for number in range(2 * MAX_KNOWN + 10):
        is_ordinary = known.find(POST + b"x: %d\r\n\r\n" % number) is not None
        is_unusual = known.find(POST + b"expect: %d\r\n\r\n" % number) is None
        assert (is_ordinary, is_unusual) == (True, True)
        assert len(known._heads) <= MAX_KNOWN
    for number in range(2 * MAX_KNOWN):
        known.find(POST + b"Content-Length: %d\r\n\r\n" % number)
    assert len(known._heads) <= MAX_KNOWN


# any head, and the parser's opinion

LENGTHS = st.sampled_from(
    ["Content-Length: 5", "content-length: 17", "CONTENT-LENGTH: 5", "Content-Length:5", "content-length:  0"]
)
ORDINARY = st.sampled_from(
    ["x: y", "X-Content-Length: 7", "x: ontent-Length: 9", "accept: */*", "connection: keep-alive", "x-odd: caf\xe9"]
)
HOSTILE = st.sampled_from(
    [line.decode("latin-1").removesuffix("\r\n") for line in (UNUSUAL | UNUSUAL_IN_REQUESTS).values()]
)
LINES = st.lists(ORDINARY | LENGTHS | HOSTILE, max_size=4)
FIRST_LINES = st.sampled_from(
    [
        "GET / HTTP/1.1",
        "POST /a?b HTTP/1.1",
        "HEAD * HTTP/1.1",
        "POST / HTTP/1.0",
        "CONNECT a:1 HTTP/1.1",
        "GET  HTTP/1.1",
    ]
)
STATUS_LINES = st.sampled_from(["200 OK", "200 ", "404 Not Found", "503 Busy", "204 No Content", "100 Continue"])


def head_of(first: str, lines: Sequence[str]) -> bytes:
    return "\r\n".join([first, *lines, "", ""]).encode("latin-1")


def check_ends_with_its_body(whole: Parsed, length: int) -> None:
    """The parser ends the message with that many bytes, and not before."""
    assert whole.is_valid
    assert whole.num_ended == (length == 0)
    if length:
        assert whole.feed(b"x" * (length - 1)).num_ended == 0
        assert whole.feed(b"x").num_ended == 1
    assert whole.is_valid


@settings(max_examples=300)
@given(st.lists(st.tuples(FIRST_LINES, LINES), min_size=1, max_size=4))
def test_a_recognised_request_is_what_the_parser_says(heads: list[tuple[str, list[str]]]) -> None:
    known = requests()
    for first, lines in heads:
        data = head_of(first, ["Host: a", *lines])
        found = find(known, data + b"x" * 20)
        if found is None:
            continue
        whole = Parsed(is_request=True).feed(data)
        assert found.body_at == len(data)
        assert found.head == RequestHead(
            method=whole.parser.get_method().decode(),
            target=whole.target,
            version=whole.parser.get_http_version(),
            headers=whole.headers,
            keeps_alive=whole.keeps_alive,
            path=whole.target.split(b"?")[0].decode(),
        )
        check_ends_with_its_body(whole, found.length)


@settings(max_examples=300)
@given(st.lists(st.tuples(STATUS_LINES, LINES), min_size=1, max_size=4))
def test_a_recognised_answer_is_what_the_parser_says(heads: list[tuple[str, list[str]]]) -> None:
    known = answers()
    for status, lines in heads * 2:
        data = head_of(f"HTTP/1.1 {status}", lines)
        found = known.find(data + b"x" * 20)
        if found is None:
            continue
        whole = Parsed(is_request=False).feed(data)
        assert found.body_at == len(data)
        assert (found.head.status, found.head.headers) == (whole.parser.get_status_code(), whole.headers)
        assert found.head.keeps_alive == whole.keeps_alive
        if found.head.is_chunked:
            assert (found.length, whole.num_ended) == (0, 0)
            assert whole.feed(b"1\r\nx\r\n0\r\n\r\n").num_ended == 1
        else:
            check_ends_with_its_body(whole, found.length)


@given(st.lists(ORDINARY, max_size=4), st.integers(0, 10**9))
def test_what_is_ordinary_is_recognised(lines: list[str], length: int) -> None:
    lines = [line for line in lines if "ontent-Length" not in line]
    fields = [*lines, f"Content-Length: {length}"]
    request, answer = (
        find(requests(), head_of("POST / HTTP/1.1", ["Host: a", *fields])),
        find(answers(), head_of("HTTP/1.1 200 OK", fields)),
    )
    assert request is not None
    assert answer is not None
    assert request.length == answer.length == length


@settings(max_examples=300)
@given(LINES, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3))
def test_a_spoiled_head_is_recognised_only_where_the_parser_takes_it(
    lines: list[str], noise: list[tuple[int, int]]
) -> None:
    spoiled = bytearray(head_of("POST / HTTP/1.1", ["Host: a", "Content-Length: 5", *lines]))
    for place, byte in noise:
        spoiled[place % len(spoiled)] = byte
    known = requests()
    known.find(POST + b"Content-Length: 5\r\n\r\n")
    found = find(known, bytes(spoiled))
    if found is not None:
        check_ends_with_its_body(Parsed(is_request=True).feed(bytes(spoiled[: found.body_at])), found.length)
