import torch

from engine.model.layers import gated_feed_forward, rms_norm, rotary_table, rotate

CPU = torch.device("cpu")


def test_a_normalised_row_has_the_weight_as_its_scale() -> None:
    normed = rms_norm(torch.tensor([[3.0, -4.0], [300.0, -400.0]]), torch.tensor([2.0, 2.0]), eps=0.0)
    torch.testing.assert_close(normed[0], normed[1])
    torch.testing.assert_close(normed.square().mean(-1), torch.tensor([4.0, 4.0]))


def test_a_normalisation_of_float16_does_not_overflow_or_change_type() -> None:
    normed = rms_norm(torch.full((1, 4), 3e4, dtype=torch.float16), torch.ones(4, dtype=torch.float16), 1e-6)
    assert normed.dtype == torch.float16
    torch.testing.assert_close(normed, torch.ones_like(normed))


def test_turned_heads_see_the_distance_between_positions_only() -> None:
    table = rotary_table(8, 64, 1000.0, CPU)
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(1))

    def score(at: int, before: int) -> float:
        turned = [rotate(heads, *table[:, [at_]][:, :, None]) for heads, at_ in ((query, at), (key, before))]
        return float((turned[0] * turned[1]).sum())

    assert abs(score(9, 4) - score(60, 55)) < 1e-4
    assert abs(score(9, 4) - score(9, 3)) > 1e-3


def test_position_zero_turns_nothing() -> None:
    heads = torch.randn(1, 3, 8)
    cos, sin = rotary_table(8, 1, 1000.0, CPU)[:, [0]][:, :, None]
    torch.testing.assert_close(rotate(heads, cos, sin), heads)


def test_a_shut_gate_lets_nothing_through() -> None:
    hidden, weight = torch.randn(2, 4), torch.randn(4, 4)
    assert gated_feed_forward(hidden, torch.zeros(4, 4), weight, weight).abs().max() == 0
