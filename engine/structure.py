"""What one output must keep to, token by token: where a grammar stands, and which tokens it allows next.

Knows a matcher and the thread that asks it. Must not know schemas (grammar.py), logits or torch.

The next mask is worked out on a thread from the moment that a token is known, while the model computes the step;
the sampler waits only for what is left of it. The matcher lets go of the interpreter's lock meanwhile.

A matcher may find at any token that a grammar takes too much to follow. It then allows the end alone, as if the output
were complete; so each token is accepted only of a matcher that has not given up. Its own limits do not bound the time
that masks take, for which all in the batch wait: that is counted here.
"""

import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TypeAlias

import llguidance
import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.int32]

# CPU seconds of a mask, and what all masks of an output may take beyond them. Common ones take a hundredth of that.
MASK_S = 0.02
SPARE_S = 1.0


@dataclass(eq=False, slots=True)
class Structure:
    """Accepts one token at a time, in the order of the output; asked for a mask only between two of them.

    `field` of the request asked for it. `is_complete`: nothing but the end can follow. `spare_s` is left of SPARE_S.
    """

    matcher: llguidance.LLMatcher
    num_words: int
    executor: Executor
    field: str
    is_complete: bool = False
    spare_s: float = SPARE_S
    _next: "Future[Mask] | None" = None

    def copy(self) -> "Structure":
        """One of its own for another output, from the beginning: call it before the first token."""
        return Structure(self.matcher.deep_copy(), self.num_words, self.executor, self.field)

    def begin(self) -> None:
        """Works out the first mask on the caller's thread: what a grammar takes before the first token, up to some
        seconds of it, is not for a thread that others' next tokens wait for."""
        self._next = Future()
        self._next.set_result(self._compute())

    def mask(self) -> Mask:
        """A bit for each token id, lowest first, set where the token may come next."""
        return (self._next or self._begin()).result()

    def accept(self, token_id: int) -> bool:
        """False if the token is not allowed here, or the grammar can be followed no further: `fault` says which."""
        is_allowed = self.matcher.consume_token(token_id) and not self.matcher.is_error() and self.spare_s > 0
        self._next = None
        # Asked now: from here on the matcher is the thread's.
        self.is_complete = self.matcher.is_stopped()
        if is_allowed and not self.is_complete:
            self._begin()
        return is_allowed

    @property
    def fault(self) -> str:
        """Why the last token was not accepted."""
        reason = self.matcher.get_error().partition("\n")[0] or "to find the next token takes too long"
        return f"the output cannot be kept to it: {reason}"

    def _begin(self) -> "Future[Mask]":
        self._next = self.executor.submit(self._compute)
        return self._next

    def _compute(self) -> Mask:
        mask, began_s = np.zeros(self.num_words, np.int32), time.thread_time()
        self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self.spare_s = min(SPARE_S, self.spare_s + MASK_S - (time.thread_time() - began_s))
        return mask
