"""For all tests: how hypothesis runs; and under CI a skipped test fails the run, unless it is on this short list with
its reason."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared: how long an example takes says nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

ALLOWED_SKIPS: dict[str, str] = {}
"""Test id -> why it may be skipped."""

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and report.nodeid not in ALLOWED_SKIPS:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and _skipped:
        print("\nSkipped, and not on the list of tests/conftest.py:", *_skipped, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
