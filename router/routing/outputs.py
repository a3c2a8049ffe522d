"""How long answers will be: a moving quantile per tenant and model. Knows counts of output tokens; knows no time.

A quantile is kept as one number that each answer pushes up or down by a share of itself, so that it follows what
changes and needs no memory of answers.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from router.core import Demand, Lease, Outcome

PRIOR_TOKENS = 256.0
# Somewhat above the median: answers have long tails, and it is the sum of their work that counts.
QUANTILE = 0.6
# Of its own size, what an answer moves the number by: much at first, less later.
FIRST_STEP, LAST_STEP = 0.5, 0.03
MAX_TENANTS = 10_000


class _Quantile(msgspec.Struct, gc=False):
    tokens: float = PRIOR_TOKENS
    step: float = FIRST_STEP

    def learn(self, num_tokens: int) -> None:
        weight = QUANTILE if num_tokens > self.tokens else QUANTILE - 1.0
        self.tokens = max(1.0, self.tokens * (1.0 + self.step * weight))
        if self.step > LAST_STEP:
            self.step = max(LAST_STEP, self.step * 0.95)


@dataclass(eq=False, slots=True)
class OutputLengths:
    """`expect` before, `learn` after. The least recently learned of more than `MAX_TENANTS` are forgotten."""

    _found: "OrderedDict[tuple[str, str], _Quantile]" = field(default_factory=OrderedDict)

    def expect(self, demand: Demand) -> float:
        """Tokens; never more than the request allows."""
        found = self._found.get(_key(demand)) or self._found.get(("", demand.pool.model))
        tokens = PRIOR_TOKENS if found is None else found.tokens
        most = demand.request.max_tokens
        return tokens if most is None else min(tokens, float(most))

    def learn(self, lease: Lease) -> None:
        """From a whole answer whose tokens were counted."""
        num_tokens = lease.output_tokens
        if lease.outcome is not Outcome.OK or num_tokens is None:
            return
        key, usual = _key(lease.demand), ("", lease.demand.pool.model)
        self._learn(usual, num_tokens)
        if key != usual:
            self._learn(key, num_tokens)

    def _learn(self, key: tuple[str, str], num_tokens: int) -> None:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _Quantile()
            if len(self._found) > MAX_TENANTS:
                self._found.popitem(last=False)
        found.learn(num_tokens)
        self._found.move_to_end(key)

    def __repr__(self) -> str:
        return f"<OutputLengths of {len(self._found)} tenants and models>"


def _key(demand: Demand) -> tuple[str, str]:
    """New tenants are taken for the model's usual."""
    standing = demand.standing
    return ("" if standing is None else standing.tenant), demand.request.model
