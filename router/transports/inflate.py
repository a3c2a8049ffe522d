"""Compressed request bodies, piece by piece. Knows gzip and a limit of size; knows no framing."""

import zlib

from router.core import Headers
from router.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

_GZIP_WINDOW = 31  # zlib's word for the largest window and a gzip header


class Inflater:
    """Gives back what a gzip body holds. Raises BodyTooLarge over `max_bytes`, whatever came in."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._zlib = zlib.decompressobj(_GZIP_WINDOW)

    def feed(self, piece: bytes) -> bytes:
        """Raises InvalidRequest where it is no gzip."""
        try:
            inflated = self._zlib.decompress(piece, self._max_bytes - self._num_bytes + 1)
        except zlib.error as error:
            raise InvalidRequest(f"The body is not valid gzip: {error}.") from None
        self._num_bytes += len(inflated)
        if self._num_bytes > self._max_bytes:
            raise BodyTooLarge(f"The body is over the limit of {self._max_bytes} bytes.")
        if self._zlib.unused_data:
            raise InvalidRequest("The body is not valid gzip: something follows its end.")
        return inflated

    def end(self) -> None:
        """Raises InvalidRequest where the body was cut short."""
        if not self._zlib.eof:
            raise InvalidRequest("The body is not valid gzip: it is cut short.")


def inflater_for(headers: Headers, max_bytes: int) -> Inflater | None:
    """None for a plain body. Raises UnsupportedEncoding for anything but gzip."""
    named = ",".join(value.lower() for name, value in headers if name == "content-encoding")
    codings = [coding for part in named.split(",") if (coding := part.strip()) not in ("", "identity")]
    if not codings:
        return None
    if codings not in (["gzip"], ["x-gzip"]):
        raise UnsupportedEncoding(f"A body may be gzip or not encoded, but not `{', '.join(codings)}`.")
    return Inflater(max_bytes)
