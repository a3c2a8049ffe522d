import gc

import pytest
import torch

from engine.model.low_rank import LowRank, Slots

CPU = torch.device("cpu")


class Named:
    """Stands for an adapter: something to refer to."""


def low_rank(seed: int) -> LowRank:
    random = torch.Generator().manual_seed(seed)
    return LowRank(torch.randn(2, 6, generator=random), torch.randn(5, 2, generator=random))


@pytest.fixture
def adapters() -> list[Named]:
    return [Named(), Named()]


def filled(adapters: list[Named]) -> Slots:
    slots = Slots(torch.float32, CPU)
    for slot, adapter in enumerate(adapters):
        slots.keep(adapter, ({"up_proj": low_rank(slot)}, {}))
        slots.place(slot, adapter)
    return slots


def test_each_adapter_adds_to_its_own_rows_only(adapters: list[Named]) -> None:
    additions = filled(adapters).additions({0: [0, 3], 1: [2]}, num_rows=4)
    assert additions is not None
    inputs, outputs = torch.randn(4, 6), torch.zeros(4, 8)
    additions(outputs[:, 1:6], inputs, 0, "up_proj")
    expected = torch.zeros(4, 8)
    for row, seed in [(0, 0), (3, 0), (2, 1)]:
        expected[row, 1:6] = inputs[row] @ low_rank(seed).inner.T @ low_rank(seed).outer.T
    torch.testing.assert_close(outputs, expected)


def test_one_adapter_alone_adds_to_all_rows(adapters: list[Named]) -> None:
    additions = filled(adapters).additions({1: [0, 1]}, num_rows=2)
    assert additions is not None
    inputs, outputs = torch.randn(2, 6), torch.ones(2, 5)
    additions(outputs, inputs, 0, "up_proj")
    torch.testing.assert_close(outputs, 1 + inputs @ low_rank(1).inner.T @ low_rank(1).outer.T)


def test_layers_and_projections_without_an_addition_stay_as_they_are(adapters: list[Named]) -> None:
    additions = filled(adapters).additions({0: [0]}, num_rows=1)
    assert additions is not None
    outputs = torch.ones(1, 5)
    additions(outputs, torch.randn(1, 6), 0, "down_proj")
    additions(outputs, torch.randn(1, 6), 1, "up_proj")
    assert outputs.equal(torch.ones(1, 5))


def test_half_precision_adds_to_what_it_is_given(adapters: list[Named]) -> None:
    slots = Slots(torch.bfloat16, CPU)
    slots.keep(adapters[0], ({"up_proj": low_rank(0)},))
    slots.place(0, adapters[0])
    for rows in ([0], [0, 1]):
        additions = slots.additions({0: rows}, num_rows=2)
        assert additions is not None
        outputs = torch.zeros(2, 5, dtype=torch.bfloat16)
        additions(outputs, torch.randn(2, 6).bfloat16(), 0, "up_proj")
        assert outputs[rows].abs().sum() > 0


def test_a_batch_without_adapters_has_nothing_to_add(adapters: list[Named]) -> None:
    assert filled(adapters).additions({}, num_rows=3) is None


def test_weights_go_with_the_last_who_refers_to_their_adapter(adapters: list[Named]) -> None:
    slots = filled(adapters)
    slots.clear()
    del adapters[0]
    gc.collect()
    assert len(slots._kept) == 1
