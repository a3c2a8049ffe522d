"""The arithmetic that transformer layers share: normalisation, rotary positions, the gated feed-forward.

Knows tensors. Must not know weights' names, KV or configs.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension, in float32 whatever the input is."""
    wide = hidden.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(hidden.dtype) * weight


def gated_feed_forward(hidden: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return linear(silu(linear(hidden, gate)) * linear(hidden, up), down)


def rotary_table(head_dim: int, num_positions: int, theta: float, device: torch.device) -> Tensor:
    """[2, positions, head_dim] float32: cosines and sines, each half of a head the same."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    positions = torch.arange(num_positions, dtype=torch.float32, device=device)
    angles = torch.outer(positions, theta**-exponents).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns [tokens, heads, head_dim] by its positions' [tokens, 1, head_dim] angles, the halves side by side."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
