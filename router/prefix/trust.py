"""Does what a replica reports agree with what we expected? Knows numbers of tokens; nothing of feeds or indexes.

A tokenizer that is not the engine's, another replica's feed or a hash that lies all come to one thing: what is found in
the cache is not what was expected. One miss says little, as caches change between a decision and its prefill; several
in a row do.
"""

from dataclasses import dataclass

NUM_AGAINST = 5
NUM_FOR = 3


@dataclass(eq=False, slots=True)
class Trust:
    """`reason` says what spoke against it last. `is_proven`: agreed several times in a row, and not disagreed since."""

    num_against: int = 0
    num_for: int = 0
    is_broken: bool = False
    reason: str = ""

    @property
    def is_proven(self) -> bool:
        return self.num_for >= NUM_FOR and not self.is_broken

    def agree(self) -> None:
        self.num_against = 0
        self.num_for += 1
        if self.num_for >= NUM_FOR:
            self.is_broken = False

    def disagree(self, reason: str) -> None:
        self.num_for = 0
        self.num_against += 1
        self.reason = reason
        if self.num_against >= NUM_AGAINST:
            self.is_broken = True

    def __repr__(self) -> str:
        state = "broken" if self.is_broken else "proven" if self.is_proven else "open"
        return f"<Trust {state} {self.num_for} for {self.num_against} against>"
