"""How many second tries a router may make. Knows counts only."""

from dataclasses import dataclass

_MOST_SAVED = 50.0


@dataclass(eq=False, slots=True)
class RetryBudget:
    """Every request earns `ratio` of a retry; a few are there from the start, so that a quiet router can retry.

    Retries beyond it would multiply the load of a fleet that already fails.
    """

    ratio: float
    saved: float = 10.0

    def earn(self) -> None:
        self.saved = min(_MOST_SAVED, self.saved + self.ratio)

    def spend(self) -> bool:
        """Take one retry if the budget has it."""
        if self.saved < 1.0:
            return False
        self.saved -= 1.0
        return True
