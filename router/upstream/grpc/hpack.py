"""HPACK (RFC 7541) as far as one gRPC client needs it: fields out without compression, blocks in without a dynamic
table. Knows bytes of header blocks; knows nothing of frames or calls.

We announce a table of size 0, so that a block means the same wherever it stands: blocks seen before are looked up.
"""

from functools import lru_cache

from router.core import Headers

# Most servers answer with the same few blocks again and again.
NUM_KNOWN = 1024
MAX_NUMBER = 2**31

_STATIC: Headers = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    *((":status", status) for status in ("200", "204", "206", "304", "400", "404", "500")),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    *(
        (name, "")
        for name in (
            "accept-language accept-ranges accept access-control-allow-origin age allow authorization cache-control "
            "content-disposition content-encoding content-language content-length content-location content-range "
            "content-type cookie date etag expect expires from host if-match if-modified-since if-none-match if-range "
            "if-unmodified-since last-modified link location max-forwards proxy-authenticate proxy-authorization range "
            "referer refresh retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary "
            "via www-authenticate"
        ).split()
    ),
)
# Bits of each byte's Huffman code, and of the end's (RFC 7541, appendix B): the codes are canonical, so that their
# lengths say all.
_NUM_BITS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606"
    "060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f050605060506060605070706060605"
    "06070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817171717151617161717181615141616171715"
    "1716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
_END = 256


def field(name: str, value: str) -> bytes:
    """One header as a literal that no table keeps."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode("latin-1")
    return number(len(data), 7) + data


def number(value: int, num_bits: int) -> bytes:
    """An integer behind no flags."""
    limit = (1 << num_bits) - 1
    if value < limit:
        return bytes((value,))
    rest = bytearray((limit,))
    value -= limit
    while value >= 128:
        rest.append(value & 127 | 128)
        value >>= 7
    rest.append(value)
    return bytes(rest)


@lru_cache(maxsize=NUM_KNOWN)
def fields(block: bytes) -> Headers:
    """The headers of a whole block. Raises ValueError for what is none, or refers to a dynamic table."""
    found, at = [], 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _number(block, at, 7)
            found.append(_known(index))
        elif first & 0xE0 == 0x20:
            _, at = _number(block, at, 5)  # a table's new size: ours holds nothing
        else:
            index, at = _number(block, at, 6 if first & 0x40 else 4)
            name = _known(index)[0] if index else None
            if name is None:
                name, at = _string(block, at)
            value, at = _string(block, at)
            found.append((name, value))
    return tuple(found)


def _known(index: int) -> tuple[str, str]:
    if not 1 <= index <= len(_STATIC):
        raise ValueError(f"a header refers to entry {index} of a table that is empty")
    return _STATIC[index - 1]


def _number(block: bytes, at: int, num_bits: int) -> tuple[int, int]:
    limit = (1 << num_bits) - 1
    value, at = _byte(block, at) & limit, at + 1
    if value < limit:
        return value, at
    shift = 0
    while True:
        byte, at = _byte(block, at), at + 1
        value += (byte & 127) << shift
        shift += 7
        if value > MAX_NUMBER:
            raise ValueError("a number in a header block is too large")
        if byte < 128:
            return value, at


def _string(block: bytes, at: int) -> tuple[str, int]:
    is_coded = _byte(block, at) & 0x80
    length, at = _number(block, at, 7)
    data = block[at : at + length]
    if len(data) < length:
        raise ValueError("a header block ends within a text")
    return (unpacked(data) if is_coded else data).decode("latin-1"), at + length


def _byte(block: bytes, at: int) -> int:
    if at >= len(block):
        raise ValueError("a header block ends within a header")
    return block[at]


def unpacked(data: bytes) -> bytes:
    """Huffman-coded text. Raises ValueError for what is none."""
    codes, text, code, num_bits = _codes(), bytearray(), 0, 0
    for byte in data:
        for shift in range(7, -1, -1):
            code, num_bits = code << 1 | byte >> shift & 1, num_bits + 1
            symbol = codes.get((num_bits, code))
            if symbol is not None:
                if symbol == _END:
                    raise ValueError("a coded text ends before its end")
                text.append(symbol)
                code = num_bits = 0
    if num_bits > 7 or code != (1 << num_bits) - 1:
        raise ValueError("a coded text has no proper end")
    return bytes(text)


@lru_cache(maxsize=1)
def _codes() -> dict[tuple[int, int], int]:
    """What each code stands for, by its length and value."""
    codes, code, length = {}, 0, 0
    for symbol in sorted(range(len(_NUM_BITS)), key=lambda symbol: (_NUM_BITS[symbol], symbol)):
        code <<= _NUM_BITS[symbol] - length
        length = _NUM_BITS[symbol]
        codes[length, code] = symbol
        code += 1
    return codes
