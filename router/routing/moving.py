"""How long a prompt's KV takes from one replica to another: a rate, learned from first tokens. Knows samples and time;
knows no engine and no sockets."""

from dataclasses import dataclass, field

# Besides the bytes: asking for them, and a turn of each engine.
BASE_S = 0.003
# What a new sample moves the estimate by, and how far off it may be taken to be.
SAMPLE_WEIGHT, MAX_RATIO = 0.2, 4.0
# A rate that nobody has seen for so long counts no more: else what was slow once would never be tried again.
FORGET_S = 60.0
MIN_SAMPLE_TOKENS = 64


@dataclass(eq=False, slots=True)
class Moving:
    """`prior_s` is seconds a token until more is known; learned for each replica that fetches."""

    prior_s: float
    _learned: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not self.prior_s > 0.0:
            raise ValueError("a token's KV takes some time")

    def expected_s(self, replica_id: str, num_tokens: int, now: float) -> float:
        return BASE_S + num_tokens * self._token_s(replica_id, now)

    def learn(self, replica_id: str, num_tokens: int, seconds: float, now: float) -> None:
        """So many tokens came; that took so long, as far as could be seen."""
        if num_tokens < MIN_SAMPLE_TOKENS:
            return
        before = self._token_s(replica_id, now)
        sample = (seconds - BASE_S) / num_tokens
        sample = min(max(sample, before / MAX_RATIO), before * MAX_RATIO)
        self._learned[replica_id] = (before + SAMPLE_WEIGHT * (sample - before), now)

    def _token_s(self, replica_id: str, now: float) -> float:
        token_s, at = self._learned.get(replica_id, (self.prior_s, now))
        return token_s if now - at < FORGET_S else self.prior_s

    def __repr__(self) -> str:
        rates = [f"{id} {1.0 / token_s:.0f} tokens/s" for id, (token_s, _) in self._learned.items()]
        return f"<Moving {', '.join(rates) or 'as set'}>"
