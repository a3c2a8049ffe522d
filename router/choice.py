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
    """A decision that is not taken: all replicas, and the one that would be chosen now; None: the demand would wait.
    `policy` is what the policy says of itself."""

    demand: Demand
    expected_output_tokens: float
    weighed: Sequence[Weighed]
    decision: Decision | None
    policy: Mapping[str, object] = {}


class Handover(Decision, frozen=True, kw_only=True, gc=False):
    """Two replicas: the prompt is computed where `prefill` says, its KV goes to this one, which decodes. `alone` is
    what this one would do by itself; `moved_tokens` of the prompt go from one to the other."""

    prefill: Decision
    alone: Decision
    moved_tokens: int

    @property
    def reason(self) -> str:
        """Also says who computes the prompt."""
        return f"{super().reason}; prefill={self.prefill.replica.id}; moved_tokens={self.moved_tokens}"


class Alone(Decision, frozen=True, kw_only=True, gc=False):
    """What was to be a handover, and had to be done by one: `failed` is the replica that did not compute the prompt."""

    failed: str

    @property
    def reason(self) -> str:
        return f"{super().reason}; prefill_failed={self.failed}"
