"""Valid requests in a row, their splits into reads, and another parser's opinion of how they are framed."""

from itertools import pairwise

import h11
from hypothesis import strategies as st

NEXT = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n"

_NAMES = st.text("abcXYZ-_", min_size=1, max_size=8).map(lambda name: "x-" + name) | st.just("X-Content-Length")
_VALUES = st.text("abc ,;=\"'/é", max_size=12).map(str.strip)
_LENGTH_NAMES = st.sampled_from(["Content-Length: ", "content-length: ", "CONTENT-LENGTH: ", "Content-Length:"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One valid request. Some have a body by length or in chunks, some offer an upgrade."""
    method, target = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE"])), draw(st.sampled_from(["/", "/a?b=c"]))
    lines = [f"{method} {target} HTTP/1.1", "Host: a"]
    lines += [f"{name}: {value}" for name, value in draw(st.lists(st.tuples(_NAMES, _VALUES), max_size=3))]
    if draw(st.integers(0, 3)) == 0:
        lines += ["Connection: Upgrade", "Upgrade: h2c"]
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40) | st.just(NEXT), max_size=3))
    framing, body = "", b""
    if method != "GET" and draw(st.booleans()):
        framing = "Transfer-Encoding: chunked"
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    elif method != "GET":
        body = b"".join(pieces)
        framing = f"{draw(_LENGTH_NAMES)}{len(body)}"
    return "\r\n".join([*lines, *([framing] if framing else []), "", ""]).encode("latin-1") + body


PIPELINES = st.lists(requests(), max_size=4)
CUTS = st.lists(st.integers(0, 10**6), max_size=8)


def split(whole: bytes, cuts: list[int]) -> list[bytes]:
    """The reads that bring the whole, cut at these places of it."""
    places = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    return [whole[a:b] for a, b in pairwise(places) if a < b]


def by_h11(whole: bytes) -> list[tuple[str, bytes, bytes]]:
    """Method, target and body of each request of a pipeline as h11 frames them."""
    connection, found = h11.Connection(h11.SERVER), []
    connection.receive_data(whole)
    while isinstance(request := connection.next_event(), h11.Request):
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
        assert isinstance(event, h11.EndOfMessage)
        found.append((request.method.decode(), request.target, body))
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()
    return found
