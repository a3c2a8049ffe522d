"""What the open requests of one replica hold in its KV cache, what they share counted once. Knows block hashes and
tokens; knows no cache, which may keep more.

Blocks are counted by strides of some hundred tokens: a stride's last hash stands for all before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core import Prompt

STRIDE_TOKENS = 512


@dataclass(eq=False, slots=True)
class Holdings:
    """`num_tokens`: of the prompts of all open requests, the strides that they share once."""

    num_tokens: int = 0
    _holders: dict[int, int] = field(default_factory=dict)

    def hold(self, prompt: Prompt) -> None:
        """One more request has this prompt."""
        holders, strides = self._holders, _strides(prompt)
        if not strides:
            self.num_tokens += prompt.num_tokens
            return
        before = len(holders)
        for block in strides:
            holders[block] = holders.get(block, 0) + 1
        self.num_tokens += prompt.num_tokens - (len(strides) - len(holders) + before) * _stride(prompt.block_size)

    def let_go(self, prompt: Prompt) -> None:
        """One request less; it must have been held."""
        holders, strides = self._holders, _strides(prompt)
        if not strides:
            self.num_tokens -= prompt.num_tokens
            return
        before = len(holders)
        for block in strides:
            if holders[block] == 1:
                del holders[block]
            else:
                holders[block] -= 1
        self.num_tokens -= prompt.num_tokens - (len(strides) - before + len(holders)) * _stride(prompt.block_size)

    def num_shared(self, prompt: Prompt) -> int:
        """Leading tokens of this prompt that open requests hold already."""
        strides, holders = _strides(prompt), self._holders
        low, high = 0, len(strides)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if strides[middle] in holders else (low, middle)
        return low * _stride(prompt.block_size)

    def __repr__(self) -> str:
        return f"<Holdings {self.num_tokens} tokens>"


def _stride(block_size: int) -> int:
    """Tokens of a stride, in whole blocks."""
    return max(1, STRIDE_TOKENS // block_size) * block_size


def _strides(prompt: Prompt) -> Sequence[int]:
    per_stride = max(1, STRIDE_TOKENS // prompt.block_size)
    return prompt.block_hashes[per_stride - 1 :: per_stride]
