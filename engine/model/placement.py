"""Where a model computes and in which number format: settings' names to torch's objects.

Knows devices and dtypes. Must not know weights, layers or what the settings are called.
"""

from enum import Enum

import torch

from engine.model.coded import coded_kernel

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PlacementError(Exception):
    """What is asked for cannot be had on this device; the message is one sentence for the user."""


class Quantized(Enum):
    """What becomes of matrices that are stored in four or eight bits a weight."""

    WIDEN = "widen"
    """They are widened to the dtype that is computed in."""
    SMALL = "small"
    """They are kept for small batches, beside the widened ones."""
    KEEP = "keep"
    """They are kept, where there is a kernel, and nothing else is."""


def device_named(name: str) -> torch.device:
    """`auto` is cuda if there is one, else cpu. Raises PlacementError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PlacementError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def dtype_named(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a cpu, which not every cpu does faster in bfloat16, else bfloat16."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[name]


def quantized_named(name: str, dtype: torch.dtype, device: torch.device) -> Quantized:
    """`auto` keeps them on a cpu in float32 by our own kernel: that is the fastest for any batch. Raises PlacementError
    for what no kernel does."""
    if name == "auto":
        is_fastest = device.type == "cpu" and dtype == torch.float32 and coded_kernel() is not None
        return Quantized.KEEP if is_fastest else Quantized.WIDEN
    quantized = Quantized(name)
    if quantized is not Quantized.WIDEN and device.type != "cpu":
        raise PlacementError(f"quantized weights are kept ({name}) on a cpu alone, not on {device}")
    if quantized is not Quantized.WIDEN and dtype != torch.bfloat16 and coded_kernel() is None:
        raise PlacementError(
            f"quantized weights are kept ({name}) in bfloat16, or by a kernel that needs a C compiler and a cpu with "
            "AVX-512 VNNI: not here"
        )
    return quantized


def use_threads(num_threads: int) -> None:
    """For all computing on the cpu, in every thread of this process."""
    torch.set_num_threads(num_threads)
