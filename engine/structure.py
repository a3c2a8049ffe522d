"""What one output must keep to, token by token: where a grammar stands, and which tokens it allows next.

Knows a matcher and the thread that asks it. Must not know schemas (grammar.py), logits or torch.

The next mask is worked out on a thread from the moment that a token is known, while the model computes the step;
the sampler waits only for what is left of it. The matcher lets go of the interpreter's lock meanwhile.
"""

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TypeAlias

import llguidance
import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.int32]


@dataclass(eq=False, slots=True)
class Structure:
    """Accepts one token at a time, in the order of the output; asked for a mask only between two of them.

    `is_complete`: nothing but the end can follow.
    """

    matcher: llguidance.LLMatcher
    num_words: int
    executor: Executor
    is_complete: bool = False
    _next: "Future[Mask] | None" = None

    def copy(self) -> "Structure":
        """One of its own for another output, from the beginning: call it before the first token."""
        return Structure(self.matcher.deep_copy(), self.num_words, self.executor)

    def mask(self) -> Mask:
        """A bit for each token id, lowest first, set where the token may come next."""
        return (self._next or self._begin()).result()

    def accept(self, token_id: int) -> bool:
        """False if the token is not allowed here."""
        is_allowed = self.matcher.consume_token(token_id)
        self._next = None
        # Asked now: from here on the matcher is the thread's.
        self.is_complete = self.matcher.is_stopped()
        if is_allowed and not self.is_complete:
            self._begin()
        return is_allowed

    def _begin(self) -> "Future[Mask]":
        self._next = self.executor.submit(self._compute)
        return self._next

    def _compute(self) -> Mask:
        mask = np.zeros(self.num_words, np.int32)
        self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask
