"""Where a model computes and in which number format: settings' names to torch's objects.

Knows devices and dtypes. Must not know weights, layers or what the settings are called.
"""

import torch

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PlacementError(Exception):
    """There is no such device here."""


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


def use_threads(num_threads: int) -> None:
    """For all computing on the cpu, in every thread of this process."""
    torch.set_num_threads(num_threads)
