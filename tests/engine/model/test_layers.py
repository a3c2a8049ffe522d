import math

import torch

from engine.model.config import Llama3Scaling, Rope
from engine.model.layers import RmsNorm, Rotation, rotary_frequencies

CPU = torch.device("cpu")


def test_a_normalised_row_has_the_weight_as_its_scale() -> None:
    normed = RmsNorm.of(torch.tensor([2.0, 2.0]), eps=0.0)(torch.tensor([[3.0, -4.0], [300.0, -400.0]]))
    torch.testing.assert_close(normed[0], normed[1])
    torch.testing.assert_close(normed.square().mean(-1), torch.tensor([4.0, 4.0]))


def test_the_floor_keeps_small_rows_small() -> None:
    normed = RmsNorm.of(torch.ones(4), eps=1.0)(torch.full((1, 4), 1e-3))
    torch.testing.assert_close(normed, torch.full((1, 4), 1e-3), rtol=1e-5, atol=0)


def test_turned_heads_see_the_distance_between_positions_only() -> None:
    frequencies = rotary_frequencies(Rope(1000.0), 8, None, CPU)
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(1))

    def score(at: int, before: int) -> float:
        turned = []
        for heads, position in ((query.clone(), at), (key.clone(), before)):
            Rotation.of(torch.tensor([position]), frequencies).turn_(heads)
            turned.append(heads)
        return float((turned[0] * turned[1]).sum())

    assert abs(score(9, 4) - score(60, 55)) < 1e-4
    assert abs(score(9, 4) - score(9, 3)) > 1e-3


def test_position_zero_turns_nothing() -> None:
    heads = torch.randn(1, 3, 8)
    turned = heads.clone()
    Rotation.of(torch.tensor([0]), torch.ones(4)).turn_(turned)
    torch.testing.assert_close(turned, heads)


def test_llama_3_stretches_long_waves_only() -> None:
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=1024)
    plain = rotary_frequencies(Rope(500_000.0), 64, None, CPU)
    scaled = rotary_frequencies(Rope(500_000.0, llama3=scaling), 64, None, CPU)
    wavelengths = 2 * math.pi / plain
    assert scaled[wavelengths < 256].equal(plain[wavelengths < 256])
    torch.testing.assert_close(scaled[wavelengths > 1024], plain[wavelengths > 1024] / 8)
    between = (wavelengths > 256) & (wavelengths < 1024)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_factors_of_the_checkpoint_and_linear_scaling_divide_frequencies() -> None:
    plain = rotary_frequencies(Rope(1000.0), 8, None, CPU)
    factors = torch.tensor([1.0, 2.0, 4.0, 8.0])
    torch.testing.assert_close(rotary_frequencies(Rope(1000.0, has_factors=True), 8, factors, CPU), plain / factors)
    torch.testing.assert_close(rotary_frequencies(Rope(1000.0, linear_factor=4.0), 8, None, CPU), plain / 4)
