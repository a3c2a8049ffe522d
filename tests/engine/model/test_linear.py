import pytest
import torch

from engine.model.linear import Dense, Packed, linear_of


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
