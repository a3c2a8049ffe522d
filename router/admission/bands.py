"""Priority classes: what they are called by clients, and what each is promised. Knows words and numbers; knows no queue
and no clock.

A band is served before those behind it, but each has a least share of a busy pool's tokens, and that share grows while
its oldest waits: nothing starves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.core import Band, Standing

NUM_BANDS = len(Band)
# OpenAI's `service_tier`; one that is not known is the default, as OpenAI's own answer says.
SERVICE_TIERS: Mapping[str, Band] = {
    "priority": Band.HIGH,
    "auto": Band.NORMAL,
    "default": Band.NORMAL,
    "scale": Band.NORMAL,
    "flex": Band.LOW,
    "batch": Band.BULK,
}
# What answers say of it, by band.
TIERS: Mapping[Band, str] = {Band.HIGH: "priority", Band.NORMAL: "default", Band.LOW: "flex", Band.BULK: "batch"}
# Lower is earlier in a body, as in vLLM, LiteLLM and Baseten: below 0 is high, 2 and more are bulk.
_FIRST_BULK = 2


@dataclass(frozen=True, slots=True)
class BandTerms:
    """What the bands are promised, by rank. `min_shares` are ratios of the tokens that a busy pool serves; the share of
    a band whose oldest waits grows by itself with each `ageing_s`, up to `most_share`. `max_waits_s` bounds the wait in
    line, None where only the request's deadline does."""

    min_shares: Sequence[float] = (0.0, 0.1, 0.05, 0.05)
    ageing_s: float = 30.0
    most_share: float = 0.25
    max_waits_s: Sequence[float | None] = field(default=(60.0, 60.0, 60.0, None))

    def __post_init__(self) -> None:
        if len(self.min_shares) != NUM_BANDS or len(self.max_waits_s) != NUM_BANDS:
            raise ValueError(f"there are {NUM_BANDS} bands")
        if any(share < 0.0 for share in self.min_shares) or sum(self.min_shares) > 0.9:
            raise ValueError("the least shares must not be negative, nor sum up to more than 0.9")
        if any(wait_s is not None and wait_s <= 0.0 for wait_s in self.max_waits_s):
            raise ValueError("a longest wait must be above 0")

    @classmethod
    def with_wait(cls, max_wait_s: float) -> "BandTerms":
        """The same longest wait for all."""
        return cls(max_waits_s=(max_wait_s,) * NUM_BANDS)


def band_of_priority(priority: int) -> Band:
    if priority < 0:
        return Band.HIGH
    return Band.BULK if priority >= _FIRST_BULK else Band(priority + 1)


def band_named(name: str) -> Band | None:
    """`high`, `normal`, `low` or `bulk`, or a number as in a body; None for anything else."""
    word = name.strip().lower()
    if word.lstrip("+-").isdecimal() and len(word) < 10:
        return band_of_priority(int(word))
    return Band[word.upper()] if word.upper() in Band.__members__ else None


_UNNAMED: Mapping[Band, Standing] = {band: Standing(band=band) for band in Band}


def unnamed(priority: int) -> Standing:
    """Of whoever was not asked who it is."""
    return _UNNAMED[band_of_priority(priority)]
