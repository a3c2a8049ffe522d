import pytest
import torch

from engine.model.coded import GROUP, Coded, Codes, FourBit, coded_kernel


@pytest.fixture
def _kernel() -> None:
    if coded_kernel() is None:
        pytest.skip("there is no C compiler, or no AVX-512 with VNNI")


def random_codes(bits: int, num_outputs: int, size: int) -> Codes:
    """With scales and minima that float16 and bfloat16 hold: what is left is the products' own rounding."""
    torch.manual_seed(num_outputs)
    codes = torch.randint(0, 2**bits, (num_outputs, size), dtype=torch.uint8)
    groups = (num_outputs, size // GROUP)
    return Codes(bits, codes, torch.rand(groups).bfloat16().float(), -8 * torch.rand(groups).bfloat16().float())


def inputs_with_outliers(num_rows: int, size: int) -> torch.Tensor:
    inputs = torch.randn(num_rows, size)
    inputs[:, 3] *= 1000
    inputs[0, GROUP:] = 0
    return inputs


def relative_error(found: torch.Tensor, inputs: torch.Tensor, codes: Codes) -> float:
    """Of what is added up, which may cancel out, were all inputs as large as the largest of their group."""
    largest = inputs.double().view(len(inputs), -1, GROUP).abs().amax(-1).repeat_interleave(GROUP, dim=1)
    sizes = Codes(codes.bits, codes.codes, codes.scales.abs(), codes.minima.abs()).widened()
    errors = (found - inputs.double() @ codes.widened().double().T).abs()
    return float((errors / (largest @ sizes.double().T).clamp_min(1e-30)).max())


@pytest.mark.usefixtures("_kernel", "_threads")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_outputs", [1, 16, 40])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 32, 33, 70])
def test_our_products_have_float32s_precision_in_each_group(bits: int, num_outputs: int, num_rows: int) -> None:
    codes = random_codes(bits, num_outputs, 96)
    inputs = inputs_with_outliers(num_rows, 96)
    coded = Coded.of(codes, None)
    assert coded is not None
    found = coded(inputs)
    assert found.dtype is torch.float32
    assert relative_error(found, inputs, codes) < 3e-7


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_codes_and_inputs_do_not_overflow(bits: int) -> None:
    largest = torch.full((16, 64), 2**bits - 1, dtype=torch.uint8)
    codes = Codes(bits, largest, torch.ones(16, 2), torch.zeros(16, 2))
    coded = Coded.of(codes, None)
    assert coded is not None
    for value in (1.0, -1.0, 3e30):
        inputs = torch.full((2, 64), value)
        assert relative_error(coded(inputs), inputs, codes) < 3e-7
    assert coded(torch.full((1, 64), 1e-38)).abs().max() < 1e-30


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("bits", [4, 8])
def test_a_group_without_a_scale_is_its_minimum_whatever_the_inputs(bits: int) -> None:
    codes = random_codes(bits, 20, 64)
    codes = Codes(bits, codes.codes, codes.scales * torch.tensor([0.0, 1.0]), codes.minima)
    coded = Coded.of(codes, None)
    assert coded is not None
    for size in (1e-18, 1e-9, 1.0, 1e9, 1e18):
        inputs = inputs_with_outliers(3, 64) * size
        assert relative_error(coded(inputs), inputs, codes) < 3e-7


@pytest.mark.usefixtures("_kernel")
def test_negative_and_the_smallest_scales_are_taken() -> None:
    codes = random_codes(4, 16, 64)
    codes = Codes(4, codes.codes, -codes.scales.sign() * 2.0**-24, torch.zeros(16, 2))
    coded = Coded.of(codes, None)
    assert coded is not None
    for size in (1e-17, 1.0, 1e30):
        inputs = torch.randn(2, 64) * size
        assert relative_error(coded(inputs), inputs, codes) < 3e-7


@pytest.mark.usefixtures("_kernel")
def test_rows_do_not_depend_on_what_else_is_in_the_batch() -> None:
    coded, inputs = Coded.of(random_codes(4, 48, 96), torch.randn(48)), torch.randn(37, 96)
    assert coded is not None
    together = coded(inputs)
    assert all(coded(inputs[row : row + 1]).equal(together[row : row + 1]) for row in range(37))


@pytest.mark.usefixtures("_kernel")
def test_inputs_that_are_not_contiguous_or_short_are_taken() -> None:
    codes = random_codes(8, 16, 32)
    coded, wide = Coded.of(codes, None), torch.randn(4, 64).bfloat16()
    assert coded is not None
    torch.testing.assert_close(coded(wide[:, 32:]), wide[:, 32:].float() @ codes.widened().T, rtol=1e-5, atol=1e-3)


@pytest.mark.usefixtures("_kernel")
def test_scales_that_float16_does_not_hold_are_not_for_our_function() -> None:
    codes = random_codes(4, 16, 32)
    assert Coded.of(Codes(4, codes.codes, codes.scales + 1e-6, codes.minima), None) is None


@pytest.mark.parametrize("has_bias", [False, True])
def test_pytorch_multiplies_four_bits_like_the_matrix_that_they_stand_for(has_bias: bool) -> None:
    codes, inputs = random_codes(4, 64, 96), torch.randn(3, 96)
    bias = torch.randn(64) if has_bias else None
    made = FourBit.of(codes, bias)
    assert made is not None
    found = made(inputs)
    assert found.dtype is torch.bfloat16
    expected = inputs @ codes.widened().T + (0 if bias is None else bias)
    assert (found - expected).abs().max() < 0.01 * expected.abs().max()


def test_eight_bits_and_matrices_of_no_whole_tiles_are_not_for_pytorch() -> None:
    assert FourBit.of(random_codes(8, 64, 96), None) is None
    assert FourBit.of(random_codes(4, 40, 96), None) is None


def test_matrices_are_joined_only_if_they_have_as_many_bits() -> None:
    four, eight = random_codes(4, 16, 32), random_codes(8, 24, 32)
    joined = Codes.joined([eight, eight])
    assert joined is not None
    assert joined.widened().equal(torch.cat([eight.widened(), eight.widened()]))
    assert Codes.joined([four, eight]) is None
