"""A short run of the fuzzer; a long one is `python -m tests.router.transports.fuzz_reader --seconds 600`."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("atheris")

SECONDS = 15


@pytest.mark.slow
def test_coverage_guided_noise_finds_no_request_that_two_parsers_frame_otherwise() -> None:
    command = [sys.executable, "-m", "tests.router.transports.fuzz_reader", "--seconds", str(SECONDS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 60)
    assert ended.returncode == 0, ended.stderr[-4000:]
    done = re.search(r"Done (\d+) runs", ended.stderr)
    assert done, ended.stderr[-4000:]
    assert int(done[1]) > 1000
