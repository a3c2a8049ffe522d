import pytest
import torch

from engine.model.coded import Codes, FourBit
from engine.model.linear import BySize, Dense, Packed, linear_of


@pytest.mark.parametrize("num_rows", [1, 3, 4, 33])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_packed_matrix_multiplies_like_the_one_it_was_made_from(
    num_rows: int, has_bias: bool, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(num_rows)
    weight, inputs = torch.randn(40, 24), torch.randn(num_rows, 24)
    bias = torch.randn(40) if has_bias else None
    made = linear_of(weight.to(dtype), None if bias is None else bias.to(dtype))
    found = made(inputs)
    assert found.dtype == dtype
    expected = torch.nn.functional.linear(inputs, weight, bias)
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=tolerance)


def test_where_there_is_no_packed_kernel_the_matrix_stays_as_it_is() -> None:
    weight = torch.randn(8, 8, dtype=torch.float64)
    made = linear_of(weight)
    assert isinstance(made, Dense)
    assert made(torch.eye(8)).equal(weight.T)


def test_float32_is_packed_on_a_cpu_that_can() -> None:
    assert isinstance(linear_of(torch.eye(32)), Packed)


def test_few_rows_go_to_the_matrix_of_few_bits_and_many_to_the_dense_one() -> None:
    scales = torch.ones(64, 3)
    few = FourBit.of(Codes(4, torch.ones(64, 96, dtype=torch.uint8), scales, scales), None)
    assert few is not None
    made = BySize(few, Dense(torch.zeros(64, 96), None))
    assert made(torch.ones(4, 96)).abs().max() > 0
    assert made(torch.ones(5, 96)).abs().max() == 0
