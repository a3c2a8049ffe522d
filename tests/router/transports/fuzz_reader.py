"""`python -m tests.router.transports.fuzz_reader [--seconds N] [--corpus FOLDER]`: atheris against the request reader.

Coverage guides what is tried. Whatever the bytes are, three things must hold: h11 frames each request that both take in
the same way; a reader that knows the heads, and one that gets other reads, see what a fresh one sees in a single read;
after a refusal nothing follows. A body that one of two parsers takes for a request is how requests are smuggled.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["h11", "router.heads", "router.transports.reader"]):
    import h11

    from router.heads import KnownHeads, RequestHead, learn_request
    from router.transports.reader import Message, RequestReader

from tests.router.transports.pipelines import NEXT, split
from tests.router.transports.test_reader import BODIES, CHUNKED, H2C, POST, SMUGGLING

MAX_BODY_BYTES = 1000
MAX_INPUT_BYTES = 700
# Of an input, the first bytes say where the reads are cut.
NUM_CUTS = 3

Framed = tuple[str, bytes, bytes]


def check(data: bytes) -> None:
    """Raises AssertionError where one of the three does not hold."""
    cuts, whole = list(data[:NUM_CUTS]), data[NUM_CUTS:]
    known, none_known = KnownHeads(learn_request), KnownHeads[RequestHead](lambda _: None)
    cold = framed([whole], none_known)
    assert framed([whole], known) == cold, "heads that are learned"
    assert framed([whole], known) == cold, "heads that are known"
    assert framed(split(whole, [cut * len(whole) // 255 for cut in cuts]), known) == cold, "other reads"
    for ours, theirs in zip(cold, by_h11(whole), strict=False):
        assert ours == theirs, "another parser"


def framed(reads: Sequence[bytes], known: "KnownHeads[RequestHead]") -> list[Framed]:
    """The requests before the first refusal, which must be the last word."""
    reader = RequestReader(MAX_BODY_BYTES, lambda: None, known)
    for read in reads:
        reader.feed(read)
    messages = [item for item in reader.waiting if isinstance(item, Message)]
    assert list(reader.waiting)[: len(messages)] == messages
    assert len(reader.waiting) - len(messages) <= 1
    return [(message.head.method, message.head.target, message.body) for message in messages]


def by_h11(whole: bytes) -> list[Framed]:
    """What h11 takes, up to where it refuses, or goes on in another protocol."""
    connection, found = h11.Connection(h11.SERVER), list[Framed]()
    connection.receive_data(whole)
    try:
        while isinstance(request := connection.next_event(), h11.Request):
            body = b""
            while isinstance(event := connection.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                break
            found.append((request.method.decode(), request.target, body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
    except h11.ProtocolError:
        pass
    return found


def seeds() -> list[bytes]:
    """What there is to begin with: each case that is refused, and each that is not, between two requests."""
    cases = [*SMUGGLING.values(), CHUNKED + b"1\r\na\r\n0\r\n\r\n", POST + b"content-length: 2\r\n\r\nab"]
    cases += [POST + H2C + rest for rest, _ in BODIES.values()]
    return [bytes(NUM_CUTS) + NEXT + case + NEXT for case in cases]


def main() -> None:
    """Never returns: atheris ends the process, with 0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.router.transports.fuzz_reader")
    parser.add_argument("--seconds", type=int, default=60, help="how long; default 60")
    parser.add_argument("--corpus", type=Path, help="folder of inputs to begin with and to add to; default: a new one")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        corpus = flags.corpus or Path(scratch)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number:03d}").write_bytes(seed)
        # The memory that libFuzzer sees is also that of whoever started this process.
        limits = [f"-max_total_time={flags.seconds}", f"-max_len={MAX_INPUT_BYTES}", "-rss_limit_mb=0"]
        limits.append("-print_final_stats=1")
        atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={corpus}/", str(corpus)], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
