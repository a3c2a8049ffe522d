"""What a cached KV block stands for: a prefix of some prompt, and what is told about it.

Knows tokens, scopes and the tiers' names. Must not know the pool, sequences, tensors or any wire.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Medium(Enum):
    """A tier of KV memory, as vLLM's events name it: the device's own, whatever the device is, and the host's."""

    GPU = "GPU"
    CPU = "CPU"


class Scope(NamedTuple):
    """Who may share KV: equal tokens have equal KV only under equal scopes.

    `adapter_load` numbers the adapter's loading, 0 without one: a name may be loaded again with other weights.
    """

    adapter: str | None = None
    salt: str | None = None
    adapter_load: int = 0


NO_SCOPE = Scope()


@dataclass(eq=False, slots=True)
class Prefix:
    """A prompt's beginning up to the end of one full block, held in the device's `block`, in `host_block`, or both.

    `tokens` are those of the last block; the ones before are the parent's. Two prefixes in a pool are never equal.
    """

    hash: int
    tokens: tuple[int, ...]
    parent: "Prefix | None"
    scope: Scope
    block: int | None = None
    host_block: int | None = None

    @property
    def is_held(self) -> bool:
        """By some tier. What was let go is another prefix when it comes again."""
        return self.block is not None or self.host_block is not None

    def holds(self, parent: "Prefix | None", scope: Scope, tokens: List[int], start: int) -> bool:
        """Whether this is `parent` and the block's worth of tokens from `start`: a hash of 64 bits may collide."""
        end = start + len(self.tokens)
        return self.parent is parent and self.scope == scope and self.tokens == tuple(tokens[start:end])

    def __repr__(self) -> str:
        return f"<Prefix {self.hash:016x} block {self.block} host block {self.host_block}>"


class Copy(NamedTuple):
    """One block's KV from a tier to the other: into `to`."""

    source: int
    target: int
    to: Medium


@dataclass(frozen=True, slots=True)
class Stored:
    """These came, each the child of the one before."""

    prefixes: list[Prefix]
    medium: Medium


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: list[int]
    medium: Medium


@dataclass(frozen=True, slots=True)
class Cleared:
    """All went, from every tier."""


Change = Stored | Removed | Cleared
