"""The rows that tokens become.

Knows a table of rows and how they are stored. Must not know layers or files. The rows are read where the checkpoint
has them, mapped into memory: a packed copy of the table, if the model's head is the same matrix, is then the only one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

ReadRows = Callable[[Tensor], Tensor]
"""[tokens] ids on the CPU -> [tokens, hidden] rows there, of any float type."""


@dataclass(frozen=True, slots=True)
class TableEmbedding:
    """The table lies on the device."""

    table: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """[tokens] ids -> [tokens, hidden] float32, the caller's own."""
        return self.table.index_select(0, tokens).float()


@dataclass(frozen=True, slots=True)
class MappedEmbedding:
    """The table lies in a file."""

    read: ReadRows

    def __call__(self, tokens: Tensor) -> Tensor:
        """[tokens] ids -> [tokens, hidden] float32, the caller's own."""
        return self.read(tokens).float()


Embedding = TableEmbedding | MappedEmbedding
