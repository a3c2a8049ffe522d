import pytest
import torch

from engine.model.placement import (
    FourBits,
    PlacementError,
    device_named,
    dtype_named,
    four_bits_named,
    use_threads,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("name", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(PlacementError, match=f"device {name} cannot be used"):
        device_named(name)


def test_auto_takes_cuda_where_there_is_one() -> None:
    assert device_named("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device_named("cpu") == CPU


def test_auto_is_full_precision_on_a_cpu_and_half_elsewhere() -> None:
    assert dtype_named("auto", CPU) == torch.float32
    assert dtype_named("auto", CUDA) == torch.bfloat16
    assert dtype_named("float16", CPU) == torch.float16


def test_the_number_of_threads_is_set_for_all() -> None:
    before = torch.get_num_threads()
    use_threads(1)
    assert torch.get_num_threads() == 1
    use_threads(before)


def test_four_bits_are_for_a_cpu_in_bfloat16() -> None:
    assert four_bits_named("never", torch.float32, CUDA) is FourBits.NEVER
    assert four_bits_named("small", torch.bfloat16, CPU) is FourBits.SMALL
    for dtype, device in ((torch.float32, CPU), (torch.bfloat16, CUDA)):
        with pytest.raises(PlacementError, match=r"four-bit weights \(always\) need a cpu and bfloat16"):
            four_bits_named("always", dtype, device)
