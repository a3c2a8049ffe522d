"""A Redis for turns, of each version and as a cluster; and leases that outlast any test."""

from collections.abc import Iterator
from typing import Any

import pytest

from router.admission import turns
from tests.router.admission.routers import LONG_LEASE_MS
from tests.router.store.servers import PROGRAMS, cluster, server


@pytest.fixture
def long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LEASE_MS", LONG_LEASE_MS)


@pytest.fixture(scope="module", params=[*sorted(PROGRAMS), "cluster"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "cluster":
        with cluster("8.2") as (_, client):
            yield client
    else:
        with server(request.param) as running:
            yield running.client
