"""What tests of functions in C share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)
