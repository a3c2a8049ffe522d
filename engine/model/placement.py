"""Where a model computes and in which number format: settings' names to torch's objects.

Knows devices and dtypes. Must not know weights, layers or what the settings are called.
"""

from enum import Enum

import torch

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PlacementError(Exception):
    """What is asked for cannot be had on this device; the message is one sentence for the user."""


class FourBits(Enum):
    """What becomes of matrices that are stored with four bits a weight."""

    NEVER = "never"
    """They are widened."""
    SMALL = "small"
    """They are kept for small batches, beside the widened ones: the fastest, with a quarter more memory."""
    ALWAYS = "always"
    """They are kept and nothing else is: the least memory, slow for large batches."""


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


def four_bits_named(name: str, dtype: torch.dtype, device: torch.device) -> FourBits:
    """Raises PlacementError where PyTorch has no such product."""
    four_bits = FourBits(name)
    if four_bits is not FourBits.NEVER and (device.type != "cpu" or dtype != torch.bfloat16):
        raise PlacementError(f"four-bit weights ({name}) need a cpu and bfloat16, not {device} and {dtype}")
    return four_bits


def use_threads(num_threads: int) -> None:
    """For all computing on the cpu, in every thread of this process."""
    torch.set_num_threads(num_threads)
