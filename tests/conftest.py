"""For all tests: how hypothesis runs; and under CI a skipped test fails the run, unless it is on this short list with
its reason."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared: how long an example takes says nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# A shell that runs a job in the background has it ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_COMPILED = "compiled where it runs: needs a C compiler and AVX-512"
_NODE = "needs Node.js, and an npm that can install"
ALLOWED_SKIPS = {
    "tests/engine/model/test_coded.py": _COMPILED,
    "tests/engine/model/test_compiled.py": _COMPILED,
    "tests/engine/model/test_compiled_rows.py": _COMPILED,
    "tests/e2e/test_grpc.py::test_the_typescript_example_chats": _NODE,
    "tests/e2e/test_node.py": f"{_NODE}; the page that chats needs a Chromium",
    "tests/router/store/test_connection.py::test_a_tls_url": "needs openssl to make a certificate",
}
"""The beginnings of test ids -> why they may be skipped: by what the machine has."""

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and not report.nodeid.startswith(tuple(ALLOWED_SKIPS)):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and _skipped:
        print("\nSkipped, and not on the list of tests/conftest.py:", *_skipped, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
