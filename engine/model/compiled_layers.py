"""What stands between a layer's matrices by our own functions (layers.c), on a CPU in float32.

Knows tensors. Must not know weights' names, files or scheduling. Each gives None, or False, where the functions cannot
be had or are not for these sizes: the caller has PyTorch's way, which makes more passes over memory.
"""

from ctypes import c_int, c_long, c_void_p
from typing import Any

import torch
from torch import Tensor

from engine.model.compiled import Function, compiled

_LANES = 16
_P, _N = c_void_p, c_long
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "normalise": (_P, _P, _P, _P, _N, _N, c_int),
    "gate": (_P, _P, _N, _N, c_int),
    "turn": (_P, _N, _P, _P, _N, _N, _N, c_int),
    "store": (_P, _N, _P, _P, _N, _N, _N, c_int),
}


def normalised(hidden: Tensor, scale: Tensor, floor: Tensor) -> Tensor | None:
    """[rows, size] / sqrt(sum of squares + floor) * scale [size]."""
    if hidden.dim() != 2 or not hidden.is_contiguous():
        return None
    function = _function("normalise", hidden, hidden.shape[1])
    if function is None:
        return None
    made = torch.empty_like(hidden)
    pointers = hidden.data_ptr(), scale.data_ptr(), floor.data_ptr(), made.data_ptr()
    function(*pointers, *hidden.shape, torch.get_num_threads())
    return made


def gated(both: Tensor) -> Tensor | None:
    """[rows, 2 * size] -> [rows, size]: silu of the first half, times the second."""
    num_rows, size = both.shape[0], both.shape[1] // 2
    function = _function("gate", both, size) if both.is_contiguous() else None
    if function is None:
        return None
    made = both.new_empty(num_rows, size)
    function(both.data_ptr(), made.data_ptr(), num_rows, size, torch.get_num_threads())
    return made


def turned(heads: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Turns [tokens, heads, head_dim] in place by the angles of a Rotation."""
    num_tokens, num_heads, size = heads.shape
    function = _function("turn", heads, size // 2) if _lie_together(heads) else None
    if function is None:
        return False
    angles = cos.data_ptr(), sin.data_ptr()
    function(heads.data_ptr(), heads.stride(0), *angles, num_tokens, num_heads, size // 2, torch.get_num_threads())
    return True


def stored(heads: Tensor, cache: Tensor, places: Tensor) -> bool:
    """Copies [tokens, heads, head_dim] to the rows `places` [tokens * heads] of `cache` [rows, head_dim]."""
    is_same = cache.dtype == heads.dtype and _lie_together(heads)
    function = _function("store", heads, heads.shape[2]) if is_same else None
    if function is None:
        return False
    function(
        heads.data_ptr(), heads.stride(0), cache.data_ptr(), places.data_ptr(), *heads.shape, torch.get_num_threads()
    )
    return True


def prepare_layers() -> None:
    for name, argtypes in _ARGUMENTS.items():
        compiled("layers.c", name, argtypes)


def _function(name: str, inputs: Tensor, size: int) -> Function | None:
    if inputs.device.type != "cpu" or inputs.dtype is not torch.float32 or size % _LANES:
        return None
    return compiled("layers.c", name, _ARGUMENTS[name])


def _lie_together(heads: Tensor) -> bool:
    """Those of one token."""
    return heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]
