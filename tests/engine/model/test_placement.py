import pytest
import torch

from engine.model.placement import (
    PlacementError,
    Quantized,
    device_named,
    dtype_named,
    quantized_named,
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


def test_quantized_weights_are_kept_where_that_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.placement.coded_kernel", lambda: min)
    assert quantized_named("auto", torch.float32, CPU) is Quantized.KEEP
    assert quantized_named("auto", torch.bfloat16, CPU) is Quantized.WIDEN
    assert quantized_named("auto", torch.float32, CUDA) is Quantized.WIDEN
    assert quantized_named("small", torch.bfloat16, CPU) is Quantized.SMALL


def test_keeping_quantized_weights_needs_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.placement.coded_kernel", lambda: None)
    assert quantized_named("keep", torch.bfloat16, CPU) is Quantized.KEEP
    assert quantized_named("auto", torch.float32, CPU) is Quantized.WIDEN
    with pytest.raises(PlacementError, match=r"\(keep\) in bfloat16, or by a kernel"):
        quantized_named("keep", torch.float32, CPU)
    with pytest.raises(PlacementError, match="on a cpu alone"):
        quantized_named("keep", torch.bfloat16, CUDA)
