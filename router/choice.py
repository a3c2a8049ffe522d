"""What a choice goes by, and what can be said of it afterwards. Knows the core's nouns; chooses nothing."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from router.core import Decision, Demand, Replica


class View(msgspec.Struct, frozen=True, gc=False):
    """What a decision can see, and when: the replicas that may be given work `now`, and the leading blocks that each
    holds, by its id; of those, `device_matches` need not be fetched from host memory. `num_blocks(id)`: all it holds.
    """

    now: float
    replicas: Sequence[Replica]
    matches: Mapping[str, int]
    device_matches: Mapping[str, int]
    num_blocks: Callable[[str], int]
    expected_output_tokens: float = 0.0


class Weighed(msgspec.Struct, frozen=True, gc=False):
    """What a policy makes of one replica: why it may not be chosen (None: it may), or its cost, lower is better, and
    what that is made of; `unit` is that of both, None where a policy has no costs."""

    replica: Replica
    matched_tokens: int
    excluded: str | None = None
    cost: float | None = None
    scores: Mapping[str, float] = {}
    unit: str | None = "seconds"


class Explanation(msgspec.Struct, frozen=True, gc=False):
    """A decision that is not taken: all replicas, and the one that would be chosen now; None: the demand would wait."""

    demand: Demand
    expected_output_tokens: float
    weighed: Sequence[Weighed]
    decision: Decision | None
