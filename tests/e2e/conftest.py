"""One fleet for all tests that leave it as they found it."""

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.fleet import BIN, Fleet, running


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    with running([str(BIN / "pointsman"), "up"]) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0) as client:
        yield client
