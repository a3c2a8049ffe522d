"""Header blocks: our own come back as they were, others' as RFC 7541's examples say, and broken ones are refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.upstream.grpc import hpack

TEXTS = st.text(st.characters(max_codepoint=255), max_size=300)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=8))
def test_a_block_of_our_own_reads_as_it_was_written(fields: list[tuple[str, str]]) -> None:
    block = b"".join(hpack.field(name, value) for name, value in fields)
    assert hpack.fields(block) == tuple(fields)


@pytest.mark.parametrize(
    ("block", "fields"),
    [  # RFC 7541, appendices C.2.2 to C.2.4, C.4.1 and C.6.1
        ("040c 2f73 616d 706c 652f 7061 7468", ((":path", "/sample/path"),)),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", (("password", "secret"),)),
        ("82", ((":method", "GET"),)),
        (
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")),
        ),
        (
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff",
            ((":status", "302"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:21 GMT")),
        ),
    ],
)
def test_blocks_of_the_rfc_read_as_it_says(block: str, fields: tuple[tuple[str, str], ...]) -> None:
    assert hpack.fields(bytes.fromhex(block.replace(" ", ""))) == fields


def test_a_table_that_is_resized_to_nothing_is_no_header() -> None:
    assert hpack.fields(b"\x20\x88") == ((":status", "200"),)


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xbe", b"\x00", b"\x00\x05ab", b"\x00\x01a\x81\x00", b"\x00\x01a\x84" + b"\xff" * 4, b"\xff" * 9],
    ids=["entry 0", "a dynamic entry", "no name", "a cut name", "bad padding", "the end's code", "an endless number"],
)
def test_what_is_no_block_is_refused(block: bytes) -> None:
    with pytest.raises(ValueError, match="a "):
        hpack.fields(block)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(block: bytes) -> None:
    with contextlib.suppress(ValueError):
        hpack.fields(block)
