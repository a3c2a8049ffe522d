"""The measurement of gRPC's cost: what is counted, and the whole command on a small scale."""

import time

import pytest

from loadtest.grpc.__main__ import main
from loadtest.grpc.client import Heard
from loadtest.grpc.source import paced


def test_an_events_age_is_counted_from_when_it_was_said() -> None:
    heard = Heard()
    for age_ms in (5, 1, 9, 3):
        heard.event(str(time.monotonic_ns() - age_ms * 1_000_000))
    heard.event("")
    assert heard.num_events == 4
    assert [int(heard.age_ms(share)) for share in (0.0, 0.5, 0.99)] == [1, 5, 9]


async def test_a_stream_says_so_many_times_when_it_is() -> None:
    before = time.monotonic_ns()
    told = [int(text) async for text in paced(3, 0.001)]
    assert len(told) == 3
    assert before < told[0] < told[1] < told[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["messages", "latency"])
def test_the_command_measures_every_case(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([what, "--streams", "2", "--events", "5", "--rounds", "1", "--interval-ms", "1"]) == 0
    printed = capsys.readouterr().out
    if what == "messages":
        assert printed.count("bare grpc.aio proxy") == printed.count("SSE in, replica over gRPC") == 2
        assert "(1.00)" in printed
    else:
        assert "gRPC in the same process" in printed


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "invalid choice" in capsys.readouterr().err
