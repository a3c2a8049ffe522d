"""How much of something may still be taken: rates that refill, budgets that end with a day or month, places that come
back. Knows numbers and seconds; knows no keys, no requests and no Redis.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

MINUTE_S = 60.0


@dataclass(eq=False, slots=True)
class Rate:
    """So many a minute: a bucket that holds a minute's worth and refills steadily. `share` is ours of it, where several
    routers count each for itself. What is taken beyond is owed."""

    per_minute: float
    at: float
    share: float = 1.0
    level: float = math.inf

    def __post_init__(self) -> None:
        self.level = min(self.level, self.most)

    @property
    def most(self) -> float:
        return self.per_minute * self.share

    def refill(self, now: float) -> float:
        """What may be taken now. A clock that steps back takes nothing away."""
        if now > self.at:
            self.level = min(self.most, self.level + (now - self.at) * self.most / MINUTE_S)
        self.at = now
        return self.level

    def take(self, amount: float) -> None:
        self.level = min(self.most, self.level - amount)

    def seconds_until(self, wanted: float) -> float:
        """Until so many may be taken, or as many as ever; 0 where that is now."""
        missing = min(wanted, self.most) - self.level
        return max(0.0, missing * MINUTE_S / self.most)

    def __repr__(self) -> str:
        return f"<Rate {self.level:.0f} of {self.most:.0f} a minute>"


@dataclass(eq=False, slots=True)
class Budget:
    """So many in a day or a month of UTC; `used` is of `period`, the first characters of its ISO time."""

    amount: float
    num_period_chars: int
    period: str = ""
    used: float = 0.0
    share: float = 1.0

    def turn(self, unix_s: float) -> float:
        """What is left now, of our share."""
        period = period_of(unix_s, self.num_period_chars)
        if period > self.period:  # a clock that steps back opens no old budget
            self.period, self.used = period, 0.0
        return self.amount * self.share - self.used

    def take(self, amount: float) -> None:
        self.used = max(0.0, self.used + amount)

    def __repr__(self) -> str:
        return f"<Budget {self.used:.0f} of {self.amount * self.share:.0f} used in {self.period}>"


DAY, MONTH = len("2026-01-31"), len("2026-01")


def period_of(unix_s: float, num_chars: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()[:num_chars]


def seconds_left(unix_s: float, num_chars: int) -> float:
    """Of the day or the month."""
    moment = datetime.fromtimestamp(unix_s, UTC)
    month, day = (moment.month, moment.day + 1) if num_chars == DAY else (moment.month + 1, 1)
    start = datetime(moment.year + month // 13, (month - 1) % 12 + 1, 1, tzinfo=UTC).timestamp()
    return start + (day - 1) * 86400.0 - unix_s


def duration(seconds: float) -> str:
    """As OpenAI writes it: `6m0s`, `1s`, `120ms`."""
    if seconds < 1.0:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"
