"""Which tokens one sequence has seen, and how often it has said each: what penalties are made of.

Knows token ids and counts. Must not know penalties, logits or torch. Counting goes on where it stopped, so a step
costs its new tokens and not the whole text.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM = 64

_Ids: TypeAlias = NDArray[np.int64]
_Counts: TypeAlias = NDArray[np.float32]


class SeenTokens:
    """Each token of `prompt` once, with a count of 0; those of the output counted."""

    __slots__ = ("_all_counts", "_all_ids", "_num_followed", "_slots")

    def __init__(self, prompt: Sequence[int]) -> None:
        unique = dict.fromkeys(prompt)
        self._slots = {token_id: slot for slot, token_id in enumerate(unique)}
        self._all_ids: _Ids = np.fromiter(unique, np.int64)
        self._all_counts: _Counts = np.zeros(len(unique), np.float32)
        self._num_followed = len(prompt)

    @property
    def token_ids(self) -> _Ids:
        return self._all_ids[: len(self._slots)]

    @property
    def counts(self) -> _Counts:
        """How often each of `token_ids` is in the output."""
        return self._all_counts[: len(self._slots)]

    def follow(self, tokens: Sequence[int]) -> None:
        """`tokens`, prompt and output, has grown: counts what is new."""
        for token_id in tokens[self._num_followed :]:
            slot = self._slots.get(token_id)
            if slot is None:
                slot = self._new_slot(token_id)
            self._all_counts[slot] += 1
        self._num_followed = len(tokens)

    def _new_slot(self, token_id: int) -> int:
        slot = self._slots[token_id] = len(self._slots)
        if slot == len(self._all_ids):
            room = max(_FIRST_ROOM, slot)
            self._all_ids = np.concatenate([self._all_ids, np.empty(room, np.int64)])
            self._all_counts = np.concatenate([self._all_counts, np.zeros(room, np.float32)])
        self._all_ids[slot] = token_id
        return slot

    def __repr__(self) -> str:
        return f"<SeenTokens {len(self._slots)} of {self._num_followed} tokens>"
