import asyncio
from collections.abc import Iterable
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Headers, Outcome
from router.transports.reply import HttpReply, encode_head

PLAIN: Headers = (("content-type", "text/plain"),)


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_aborted = False

    @property
    def sent(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def abort(self) -> None:
        self.is_aborted = True


class FakeFlow:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def pause(self) -> None:
        self.heard.append("pause")

    def resume(self) -> None:
        self.heard.append("resume")

    def gone(self) -> None:
        self.heard.append("gone")


class Replying:
    """A reply, where it writes, and how it told its end."""

    def __init__(self, *, keeps_alive: bool = True, is_http10: bool = False) -> None:
        self.transport, self.flow = FakeTransport(), FakeFlow()
        self.ends: list[bool] = []
        self.reply = HttpReply(self.transport, self.ends.append, keeps_alive=keeps_alive, is_http10=is_http10)
        self.reply.bind(self.flow)

    def answer(self, *payloads: bytes, headers: Headers = PLAIN, length: int | None = None) -> None:
        self.reply.head(200, headers, length=length)
        for payload in payloads:
            self.reply.write(payload)
        self.reply.end(Outcome.OK, is_complete=True)

    @property
    def head(self) -> list[str]:
        return self.transport.sent.split(b"\r\n\r\n")[0].decode().split("\r\n")


def test_a_head_has_its_status_line_and_a_line_for_each_field() -> None:
    assert encode_head(200, (("a", "1"), ("b", "é"))) == b"HTTP/1.1 200 OK\r\na: 1\r\nb: \xe9\r\n"
    assert encode_head(299, ()) == b"HTTP/1.1 299 Unknown\r\n"
    assert encode_head(504, (("x", "\u2028"),)) == b"HTTP/1.1 504 Gateway Timeout\r\nx: ?\r\n"
    assert encode_head(200, (("a", "1"), ("a", "2"))) == b"HTTP/1.1 200 OK\r\na: 1\r\na: 2\r\n"


def test_the_fields_of_one_answer_follow_those_of_many() -> None:
    replying = Replying()
    replying.reply.head(200, PLAIN, (("x-request-id", "1"),), 0)
    replying.reply.end(Outcome.OK, is_complete=True)
    assert replying.transport.sent == (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n"
    )


def test_a_body_without_a_length_goes_in_chunks() -> None:
    replying = Replying()
    replying.answer(b"hello", b"x" * 20)
    assert replying.head == ["HTTP/1.1 200 OK", "content-type: text/plain", "transfer-encoding: chunked"]
    assert replying.transport.sent.endswith(b"\r\n\r\n5\r\nhello\r\n14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n")
    assert replying.ends == [True]


def test_a_body_with_a_length_goes_as_it_is() -> None:
    replying = Replying()
    replying.answer(b"hello", headers=(), length=5)
    assert replying.transport.sent == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    assert replying.ends == [True]


def test_the_head_and_the_first_payload_leave_in_one_write() -> None:
    replying = Replying()
    replying.reply.head(200, PLAIN)
    assert replying.transport.writes == []
    replying.reply.write(b"a")
    replying.reply.write(b"b")
    assert [b"HTTP/1.1" in write for write in replying.transport.writes] == [True, False]


def test_an_empty_payload_is_no_last_chunk() -> None:
    replying = Replying()
    replying.answer(b"", b"a", b"")
    assert replying.transport.sent.endswith(b"\r\n\r\n1\r\na\r\n0\r\n\r\n")


FRAMED = b"2;x=y\r\nhe\r\n0003\r\nllo\r\n"


def test_chunks_are_passed_on_as_they_came() -> None:
    replying = Replying()
    replying.reply.head(200, PLAIN)
    replying.reply.write(b"hello", FRAMED)
    replying.reply.write(b"!", b"1\r\n!\r\n")
    replying.reply.write(b"mine")
    replying.reply.end(Outcome.OK, is_complete=True)
    head, rest = replying.transport.sent.split(b"\r\n\r\n", 1)
    assert rest == FRAMED + b"1\r\n!\r\n" + b"4\r\nmine\r\n" + b"0\r\n\r\n"
    assert head.endswith(b"transfer-encoding: chunked")


@pytest.mark.parametrize(("is_http10", "length"), [(False, 6), (True, 6), (True, None)])
def test_the_framing_of_chunks_is_dropped_where_the_client_gets_none(is_http10: bool, length: int | None) -> None:
    replying = Replying(is_http10=is_http10)
    replying.reply.head(200, PLAIN, length=length)
    replying.reply.write(b"hello", FRAMED)
    replying.reply.write(b"!", b"1\r\n!\r\n")
    replying.reply.end(Outcome.OK, is_complete=True)
    assert replying.transport.sent.split(b"\r\n\r\n", 1)[1] == b"hello!"


def test_an_answer_without_a_body_is_a_head_and_an_end() -> None:
    replying = Replying()
    replying.answer()
    assert replying.transport.sent.endswith(b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n")


def test_a_client_that_wants_no_more_hears_that_we_close() -> None:
    replying = Replying(keeps_alive=False)
    replying.answer(b"a")
    assert replying.head[-1] == "connection: close"
    assert replying.ends == [False]


def test_http_1_0_gets_no_chunks_but_the_close() -> None:
    replying = Replying(is_http10=True)
    replying.answer(b"a", b"b")
    assert replying.head == ["HTTP/1.1 200 OK", "content-type: text/plain", "connection: close"]
    assert replying.transport.sent.endswith(b"\r\n\r\nab")
    assert replying.ends == [False]


def test_http_1_0_may_stay_where_the_length_is_known() -> None:
    replying = Replying(is_http10=True)
    replying.answer(b"a", length=1)
    assert replying.head[-1] == "connection: keep-alive"
    assert replying.ends == [True]


@pytest.mark.parametrize("is_http10", [False, True])
def test_a_short_body_is_cut_where_the_client_can_see_it(is_http10: bool) -> None:
    replying = Replying(is_http10=is_http10)
    replying.reply.head(200, PLAIN)
    replying.reply.write(b"a")
    replying.reply.end(Outcome.CUT_MID_STREAM, is_complete=False)
    assert replying.transport.is_aborted
    assert not replying.transport.sent.endswith(b"0\r\n\r\n")
    assert replying.ends == []


def test_a_slow_client_pauses_the_flow_and_resumes_it() -> None:
    replying = Replying()
    replying.reply.pause()
    replying.reply.resume()
    assert replying.flow.heard == ["pause", "resume"]


def test_a_lost_client_ends_the_flow_at_once_and_nothing_is_written_after() -> None:
    replying = Replying()
    replying.reply.head(200, PLAIN)
    replying.reply.lost()
    assert replying.flow.heard == ["gone"]
    replying.reply.write(b"a")
    replying.reply.end(Outcome.CLIENT_GONE, is_complete=True)
    assert (replying.transport.writes, replying.ends) == ([], [])


def test_after_the_end_the_flow_hears_nothing() -> None:
    replying = Replying()
    replying.answer(b"a")
    replying.reply.pause()
    replying.reply.resume()
    replying.reply.lost()
    assert replying.flow.heard == []


def test_after_the_end_nothing_follows() -> None:
    replying = Replying()
    replying.answer(b"a")
    sent = replying.transport.sent
    replying.reply.write(b"late")
    replying.reply.end(Outcome.OK, is_complete=True)
    assert (replying.transport.sent, replying.ends) == (sent, [True])


def test_a_reply_that_nobody_bound_may_be_lost() -> None:
    reply = HttpReply(FakeTransport(), lambda _: None, keeps_alive=True, is_http10=False)
    reply.pause()
    reply.lost()


@given(st.lists(st.binary(max_size=50), max_size=6), st.booleans())
def test_a_client_reads_what_was_written(payloads: list[bytes], has_length: bool) -> None:
    replying, body = Replying(), b"".join(payloads)
    replying.answer(*payloads, length=len(body) if has_length else None)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(replying.transport.sent)
    assert isinstance(client.next_event(), h11.Response)
    received = b""
    while isinstance(event := client.next_event(), h11.Data):
        received += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert received == body
    assert client.trailing_data == (b"", False)
