"""Which band goes next: the higher one, unless a lower one is owed its least share. Knows bands and tokens; knows no
flows and no waiters.

Each grant credits every waiting band with its share of the tokens and debits the band that got it. Who has credit for a
whole request goes first, the one with most before the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.admission.bands import NUM_BANDS, BandTerms

# Of the mean of what grants take, and of the credit that may be saved, in grants.
_NEWEST_SHARE = 0.1
_MOST_SAVED = 4.0


@dataclass(eq=False, slots=True)
class Shares:
    """The bands' accounts in one pool, in tokens."""

    terms: BandTerms
    mean_tokens: float = 0.0
    credits: list[float] = field(default_factory=lambda: [0.0] * NUM_BANDS)

    def order(self, waiting: Sequence[int]) -> Sequence[int]:
        """The waiting bands' ranks as their turns come; `waiting` is by rank."""
        if len(waiting) < 2:
            return waiting
        credits, enough = self.credits, self.mean_tokens
        owed = [rank for rank in waiting if credits[rank] > 0.0 and credits[rank] >= enough]
        if not owed:
            return waiting
        owed.sort(key=lambda rank: -credits[rank])
        return [*owed, *(rank for rank in waiting if rank not in owed)]

    def served(self, rank: int, num_tokens: float, waits_s: Sequence[float | None]) -> None:
        """A band was served so many tokens while `waits_s`, by rank, is how long the oldest of each has waited; None
        where nobody does. Credit is not saved up by who does not wait, nor debt by who was served when others had no
        use for it."""
        credits, mean = self.credits, self.mean_tokens
        mean += _NEWEST_SHARE * (num_tokens - mean) if mean else num_tokens
        self.mean_tokens = mean
        for other, wait_s in enumerate(waits_s):
            if wait_s is not None:
                credit = credits[other] + self._share(other, wait_s) * num_tokens
                credits[other] = min(credit, _MOST_SAVED * mean)
            elif other != rank:
                credits[other] = min(credits[other], 0.0)
        credits[rank] = max(credits[rank] - num_tokens, -num_tokens)

    def _share(self, rank: int, oldest_wait_s: float) -> float:
        least = self.terms.min_shares[rank]
        return min(max(self.terms.most_share, least), least * (1.0 + oldest_wait_s / self.terms.ageing_s))

    def __repr__(self) -> str:
        return f"<Shares {', '.join(f'{credit:.0f}' for credit in self.credits)}>"
