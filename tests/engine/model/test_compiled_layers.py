"""Against the same in float64, within a few units of float32's last place."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from engine.model.compiled import compiled
from engine.model.compiled_layers import gated, normalised, prepare_layers, stored, turned
from engine.model.layers import RmsNorm, Rotation, swiglu


@pytest.fixture
def _functions() -> None:
    prepare_layers()
    if compiled("layers.c", "gate", ()) is None:
        pytest.skip("there is no C compiler, or no AVX-512")


@pytest.mark.usefixtures("_functions", "_threads")
@pytest.mark.parametrize("num_rows", [0, 1, 17, 40])
def test_rows_are_normalised(num_rows: int) -> None:
    hidden, norm = torch.randn(num_rows, 80) * 30, RmsNorm.of(torch.randn(80), 1e-5)
    found = normalised(hidden, norm.scale, norm.floor)
    assert found is not None
    mean = hidden.double().square().mean(-1, keepdim=True)
    expected = hidden.double() / (mean + 1e-5).sqrt() * norm.scale.double() / 80**0.5
    torch.testing.assert_close(found, expected.float(), atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("_functions", "_threads")
@pytest.mark.parametrize("num_rows", [1, 40])
def test_gates_open_and_close(num_rows: int) -> None:
    both = torch.randn(num_rows, 96) * 10
    both[0, :8] = torch.tensor([-1e4, -300.0, -100.0, -0.0, 0.0, 100.0, 300.0, 1e4])
    found = gated(both)
    assert found is not None
    gate, up = both.double().chunk(2, dim=-1)
    torch.testing.assert_close(found, (silu(gate) * up).float(), atol=1e-6, rtol=1e-6)


def rotation_of(num_tokens: int, size: int) -> Rotation:
    return Rotation.of(torch.arange(num_tokens) * 7, torch.rand(size // 2))


@pytest.mark.usefixtures("_functions", "_threads")
@pytest.mark.parametrize("num_tokens", [1, 33])
def test_only_the_heads_that_are_meant_are_turned(num_tokens: int) -> None:
    rotation, heads = rotation_of(num_tokens, 64), torch.randn(num_tokens, 5, 64)
    before, meant = heads.clone(), heads[:, :3]
    assert turned(meant, rotation.cos, rotation.sin)
    expected = before[:, :3].double()
    rotation.turn_(expected)
    torch.testing.assert_close(meant, expected.float(), atol=1e-6, rtol=1e-6)
    assert heads[:, 3:].equal(before[:, 3:])


@pytest.mark.usefixtures("_functions", "_threads")
@pytest.mark.parametrize("num_tokens", [1, 33])
def test_heads_are_stored_where_they_belong(num_tokens: int) -> None:
    heads, cache = torch.randn(num_tokens, 7, 16)[:, 3:], torch.zeros(500, 16)
    places = torch.randperm(500)[: num_tokens * 4]
    assert stored(heads, cache, places)
    assert cache.equal(torch.zeros(500, 16).index_copy_(0, places, heads.flatten(0, 1)))


@pytest.mark.parametrize(
    "both",
    [torch.randn(3, 24), torch.randn(3, 64).bfloat16(), torch.randn(3, 64).double(), torch.randn(3, 128)[:, ::2]],
)
def test_gates_of_other_kinds_are_left_to_pytorch(both: Tensor) -> None:
    assert gated(both) is None
    gate, up = both.chunk(2, dim=-1)
    assert swiglu(both).equal(silu(gate) * up)


@pytest.mark.parametrize("hidden", [torch.randn(3, 24), torch.randn(2, 3, 32), torch.randn(3, 32).double()])
def test_norms_of_other_kinds_are_left_to_pytorch(hidden: Tensor) -> None:
    norm = RmsNorm.of(torch.ones(hidden.shape[-1]), 0.0)
    assert normalised(hidden, norm.scale, norm.floor) is None
    torch.testing.assert_close(norm(hidden).square().mean(-1), torch.ones(hidden.shape[:-1], dtype=hidden.dtype))


@pytest.mark.parametrize(
    "heads", [torch.randn(2, 3, 24), torch.randn(2, 3, 64).double(), torch.randn(2, 32, 3).transpose(1, 2)]
)
def test_heads_of_other_kinds_are_left_to_pytorch(heads: Tensor) -> None:
    rotation, before = rotation_of(2, heads.shape[2]), heads.clone()
    assert not turned(heads, rotation.cos, rotation.sin)
    assert not stored(heads, torch.zeros(9, heads.shape[2], dtype=heads.dtype), torch.arange(6))
    assert heads.equal(before)
