from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import BadAnswer, ConnectionCut
from router.heads import AnswerHead, KnownHeads, learn_answer
from router.spec import ReplicaSpec
from router.upstream.answer import MAX_HEAD_BYTES
from router.upstream.connection import Connection
from router.upstream.exchange import HttpExchange
from tests.router.upstream.fakes import FakeSink, FakeSocket, make_attempt

OK = b"HTTP/1.1 200 OK\r\n"


class Wired:
    """A connection on a socket in memory, with an exchange under way on it."""

    def __init__(self, *, is_reused: bool = False, known: KnownHeads[AnswerHead] | None = None) -> None:
        self.kept: list[Connection] = []
        self.forgotten: list[Connection] = []
        self.resent: list[HttpExchange] = []
        self.socket, self.sink = FakeSocket(), FakeSink()
        self.connection = Connection("a:1", known or KnownHeads(learn_answer), self.kept.append, self.forgotten.append)
        self.connection.connection_made(self.socket)
        self.exchange = self.begin(self.sink, is_reused=is_reused)

    def begin(self, sink: FakeSink, *, is_reused: bool = True) -> HttpExchange:
        exchange = HttpExchange(make_attempt(), sink, self.resent.append)
        exchange.start(self.connection, is_reused=is_reused)
        return exchange

    def receive(self, *reads: bytes) -> "Wired":
        for read in reads:
            if self.socket.end is None:
                self.connection.data_received(read)
        return self

    def eof(self) -> "Wired":
        """The replica closes in order."""
        self.connection.eof_received()
        return self.lose()

    def lose(self) -> "Wired":
        self.connection.connection_lost(None)
        return self

    @property
    def is_kept(self) -> bool:
        return self.kept == [self.connection] and self.socket.end is None


# name: (bytes of an answer, its status, its body, whether the connection can serve again)
ANSWERS: dict[str, tuple[bytes, int, bytes, bool]] = {
    "a length": (OK + b"content-length: 5\r\n\r\nhello", 200, b"hello", True),
    "no bytes": (OK + b"content-length: 0\r\n\r\n", 200, b"", True),
    "chunks": (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", 200, b"hello", True),
    "trailers": (OK + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-sum: 1\r\n\r\n", 200, b"x", True),
    "no chunk but the last": (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 200, b"", True),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "an error": (b"HTTP/1.1 503 Busy\r\nretry-after: 3\r\ncontent-length: 2\r\n\r\n{}", 503, b"{}", True),
    "no reason": (b"HTTP/1.1 200 \r\ncontent-length: 1\r\n\r\nx", 200, b"x", True),
    "an interim head": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 1\r\n\r\nx", 200, b"x", True),
    "two interim heads": (
        b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" * 2 + OK + b"content-length: 1\r\n\r\nx",
        200,
        b"x",
        True,
    ),
    "its last answer": (OK + b"connection: close\r\ncontent-length: 1\r\n\r\nx", 200, b"x", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", 200, b"x", False),
    "HTTP/1.0 that stays": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
        200,
        b"x",
        True,
    ),
}


def check(wired: Wired, name: str) -> None:
    _, status, body, is_reusable = ANSWERS[name]
    sink = wired.sink
    assert (sink.status, sink.body, sink.ends) == (status, body, ["end"])
    assert sink.heard[0] == "head"
    assert not any("link" in name or "x-sum" in name for name in sink.headers)
    assert wired.is_kept == is_reusable
    assert (wired.socket.end is None) == is_reusable


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_heard_as_head_body_and_end(name: str) -> None:
    check(Wired().receive(ANSWERS[name][0]), name)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_cut_at_any_byte_is_the_same_and_ends_with_its_last(name: str) -> None:
    whole = ANSWERS[name][0]
    for i in range(1, len(whole)):
        wired = Wired().receive(whole[:i])
        assert wired.sink.ends == []
        check(wired.receive(whole[i:]), name)
    check(Wired().receive(*(whole[i : i + 1] for i in range(len(whole)))), name)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_where_its_head_came_before(name: str) -> None:
    known, whole = KnownHeads(learn_answer), ANSWERS[name][0]
    for i in range(1, len(whole)):
        check(Wired(known=known).receive(whole[:i], whole[i:]), name)
    check(Wired(known=known).receive(whole), name)


@settings(max_examples=100)
@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=5),
    st.sampled_from([b"content-length: ", b"Content-Length: ", b"CONTENT-LENGTH: ", b"Content-Length:", None]),
    st.lists(st.integers(0, 10**6), max_size=6),
)
def test_any_body_in_any_reads_is_heard_whole(pieces: list[bytes], length: bytes | None, cuts: list[int]) -> None:
    body = b"".join(pieces)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    sized = OK + b"%s%d\r\n\r\n%s" % (length or b"", len(body), body)
    whole = OK + b"transfer-encoding: chunked\r\n\r\n" + chunks if length is None else sized
    places = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    wired = Wired().receive(*(whole[a:b] for a, b in pairwise(places) if a < b))
    assert (wired.sink.body, wired.sink.ends, wired.is_kept) == (body, ["end"], True)


def test_header_names_are_lower_case() -> None:
    wired = Wired().receive(OK + b"Content-Type: Text/Plain\r\nX-Odd: caf\xe9\r\ncontent-length: 0\r\n\r\n")
    assert wired.sink.headers == {"content-type": "Text/Plain", "x-odd": "café"}


@pytest.mark.parametrize("num_bytes_first", [10, 1000])
def test_a_length_is_told_apart_from_the_headers(num_bytes_first: int) -> None:
    whole = OK + b"x: y\r\ncontent-length: 2\r\n\r\nab"
    sink = Wired().receive(whole[:num_bytes_first], whole[num_bytes_first:]).sink
    assert (sink.length, sink.headers) == (2, {"x": "y"})
    assert Wired().receive(OK + b"transfer-encoding: chunked\r\n\r\n").sink.length is None


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    wired = Wired().receive(OK + b"\r\n", b"hel", b"lo")
    assert wired.sink.ends == []
    wired.eof()
    assert (wired.sink.body, wired.sink.ends, wired.is_kept) == (b"hello", ["end"], False)


def test_a_connection_serves_one_exchange_after_the_other() -> None:
    wired = Wired()
    for i in range(3):
        sink = FakeSink()
        wired.receive(OK + b"content-length: 1\r\n\r\n%d" % i)
        wired.begin(sink)
    wired.receive(OK + b"content-length: 1\r\n\r\n3")
    assert (sink.body, sink.ends, len(wired.kept)) == (b"3", ["end"], 4)


# what breaks


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nx",
        OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"content-length: -1\r\n\r\n",
        OK + b"x: y\r\n folded: z\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
        OK + b"x: " + b"y" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 4000,
    ],
    ids=lambda sent: repr(sent[:40]),
)
def test_what_is_no_answer_is_an_error_and_the_end_of_the_connection(sent: bytes) -> None:
    known = KnownHeads(learn_answer)
    Wired(known=known).receive(sent)
    wired = Wired(is_reused=True, known=known).receive(sent, b"more")
    assert isinstance(wired.sink.error, BadAnswer)
    assert (wired.socket.end, wired.kept, wired.resent) == ("aborted", [], [])
    wired.lose()
    assert wired.forgotten == [wired.connection]


def test_what_came_before_a_fault_is_still_heard() -> None:
    wired = Wired().receive(OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n")
    assert (wired.sink.heard, wired.sink.body) == (["head", "body", "error"], b"hello")


@pytest.mark.parametrize(
    "partial",
    [
        b"HTTP/1.1 2",
        OK + b"content-length: 5\r\n\r\nhel",
        OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
@pytest.mark.parametrize("is_reused", [False, True])
def test_an_answer_that_is_cut_is_an_error_and_never_sent_again(partial: bytes, is_reused: bool) -> None:
    wired = Wired(is_reused=is_reused).receive(partial).eof()
    assert isinstance(wired.sink.error, ConnectionCut)
    assert (wired.resent, wired.forgotten) == ([], [wired.connection])


def test_a_reused_connection_that_breaks_before_any_byte_asks_for_a_fresh_one() -> None:
    wired = Wired(is_reused=True).lose()
    assert (wired.resent, wired.sink.heard) == ([wired.exchange], [])


def test_a_fresh_connection_that_breaks_before_any_byte_is_an_error() -> None:
    wired = Wired().lose()
    assert isinstance(wired.sink.error, ConnectionCut)
    assert wired.resent == []


def test_an_exchange_is_sent_again_only_once() -> None:
    wired, fresh = Wired(is_reused=True).lose(), Wired()
    wired.exchange.start(fresh.connection, is_reused=False)
    fresh.lose()
    assert isinstance(wired.sink.error, ConnectionCut)
    assert wired.resent == [wired.exchange]


@pytest.mark.parametrize("extra", [b"x", b"garbage\r\n\r\n", OK + b"content-length: 0\r\n\r\n", b"\0", b"HTTP/1.1 2"])
def test_bytes_after_the_end_make_the_connection_unusable_but_not_the_answer(extra: bytes) -> None:
    wired = Wired().receive(OK + b"content-length: 5\r\n\r\nhello" + extra)
    assert (wired.sink.status, wired.sink.body, wired.sink.ends) == (200, b"hello", ["end"])
    assert not wired.kept
    assert wired.socket.end is not None


def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    wired = Wired().receive(OK + b"content-length: 0\r\n\r\n")
    assert wired.is_kept
    wired.receive(b"x")
    assert wired.socket.end == "aborted"
    assert not wired.connection.is_usable


@settings(max_examples=100)
@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=5))
def test_noise_ends_an_answer_at_most_once(name: str, noise: list[tuple[int, int]]) -> None:
    spoiled = bytearray(ANSWERS[name][0])
    for place, byte in noise:
        spoiled[place % len(spoiled)] = byte
    wired = Wired().receive(bytes(spoiled[:20]), bytes(spoiled[20:])).eof()
    assert len(wired.sink.ends) == 1  # the sink itself asserts that nothing follows


# the way back


def test_the_request_goes_out_with_its_host_id_and_length() -> None:
    attempt = make_attempt(ReplicaSpec("http://b:9/base"), b"{...}", (("x-odd", "café"), ("x-other", "1")))
    wired = Wired()
    exchange = HttpExchange(attempt, FakeSink(), wired.resent.append)
    wired.socket.sent = b""
    exchange.start(wired.connection, is_reused=False)
    assert wired.socket.sent == (
        b"POST /base/v1/completions HTTP/1.1\r\nhost: b:9\r\nx-odd: caf\xe9\r\nx-other: 1\r\n"
        b"x-request-id: req-1\r\ncontent-length: 5\r\n\r\n{...}"
    )


@pytest.mark.parametrize("when", ["head", "body"])
def test_a_sink_that_aborts_hears_nothing_more(when: str) -> None:
    wired = Wired()
    wired.sink.on_each = lambda word: wired.exchange.abort() if word == when else None
    wired.receive(OK + b"content-length: 5\r\n\r\nhello")
    assert wired.sink.heard[-1] == when
    assert (wired.socket.end, wired.kept) == ("aborted", [])
    wired.lose()
    assert wired.sink.heard[-1] == when


def test_an_abort_detaches_in_the_same_turn() -> None:
    wired = Wired()
    wired.exchange.abort()
    wired.exchange.abort()
    assert (wired.socket.end, wired.sink.heard) == ("aborted", [])
    wired.lose()
    assert (wired.sink.heard, wired.resent) == ([], [])


def test_an_exchange_that_was_aborted_while_it_waited_for_a_connection_sends_nothing() -> None:
    wired = Wired()
    late = HttpExchange(make_attempt(), FakeSink(), wired.resent.append)
    late.abort()
    wired.socket.sent = b""
    late.start(wired.connection, is_reused=False)
    assert (wired.socket.sent, wired.socket.end) == (b"", "aborted")


def test_a_slow_client_stops_the_reading_and_lets_it_go_on() -> None:
    wired = Wired()
    wired.exchange.pause()
    assert not wired.socket.reads
    wired.exchange.resume()
    assert wired.socket.reads


def test_an_exchange_that_was_paused_before_it_began_does_not_read() -> None:
    wired = Wired()
    early = HttpExchange(make_attempt(), FakeSink(), wired.resent.append)
    early.pause()
    early.start(wired.connection, is_reused=False)
    assert not wired.socket.reads


def test_a_pause_at_the_very_end_does_not_stop_the_next_exchange() -> None:
    wired = Wired()
    wired.sink.on_each = lambda word: wired.exchange.pause() if word == "body" else None
    wired.receive(OK + b"content-length: 5\r\n\r\nhello")
    assert wired.is_kept
    assert wired.socket.reads
    wired.exchange.pause()
    assert wired.socket.reads


def test_a_connection_that_is_lost_between_exchanges_fails_the_next_by_a_fresh_one() -> None:
    wired = Wired().receive(OK + b"content-length: 0\r\n\r\n").lose()
    sink = FakeSink()
    exchange = wired.begin(sink, is_reused=True)
    assert (wired.resent, sink.heard) == ([exchange], [])
