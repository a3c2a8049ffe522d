"""For all tests: under CI a skipped test fails the run, unless it is on this short list with its reason."""

import os
from collections.abc import Iterator

import pytest

ALLOWED_SKIPS: dict[str, str] = {}
"""Test id -> why it may be skipped."""

_skipped: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.nodeid not in ALLOWED_SKIPS:
        _skipped.append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and _skipped:
        print("\nSkipped, and not on the list of tests/conftest.py:", *_skipped, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
