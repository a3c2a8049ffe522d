import pytest
import torch

from engine.model.linear import (
    FOUR_BIT_GROUP,
    Dense,
    FourBitMatrix,
    Packed,
    can_be_four_bit,
    four_bit_linear,
    linear_of,
)


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


def four_bit_matrix(num_rows: int, size: int) -> FourBitMatrix:
    torch.manual_seed(3)
    groups = (num_rows, size // FOUR_BIT_GROUP)
    # Scales and minima that bfloat16 holds: what is left is the products' own rounding.
    nibbles = torch.randint(0, 16, (num_rows, size), dtype=torch.uint8)
    return FourBitMatrix(nibbles, torch.rand(groups).bfloat16().float(), -8 * torch.rand(groups).bfloat16().float())


@pytest.mark.parametrize("has_bias", [False, True])
def test_four_bits_multiply_like_the_matrix_that_they_stand_for(has_bias: bool) -> None:
    matrix = four_bit_matrix(64, 96)
    scales, minima = (part.repeat_interleave(FOUR_BIT_GROUP, dim=1) for part in (matrix.scales, matrix.minima))
    inputs = torch.randn(3, 96)
    bias = torch.randn(64).bfloat16() if has_bias else None
    found = four_bit_linear(matrix, bias, None)(inputs)
    assert found.dtype is torch.bfloat16
    expected = inputs @ (matrix.nibbles * scales + minima).T + (0 if bias is None else bias)
    assert (found - expected).abs().max() < 0.01 * expected.abs().max()


def test_many_rows_go_to_the_dense_matrix_where_there_is_one() -> None:
    made = four_bit_linear(four_bit_matrix(64, 96), None, Dense(torch.zeros(64, 96), None))
    assert made(torch.ones(4, 96)).abs().max() > 0
    assert made(torch.ones(5, 96)).abs().max() == 0


def test_matrices_that_are_no_whole_tiles_are_not_for_four_bits() -> None:
    assert can_be_four_bit(four_bit_matrix(64, 96))
    assert not can_be_four_bit(four_bit_matrix(40, 96))
