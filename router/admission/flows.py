"""Weighted fair sharing between flows: a virtual token counter for each (Sheng et al., OSDI 2024). Knows tokens,
weights and who waits; knows no requests, no order within a flow and no clock.

The flow with the lowest counter goes first; serving it adds tokens / weight. A flow that comes to wait begins no lower
than the flow served last did: nobody saves up for later. A tenant's flows share its weight: each is charged as many
times as there are flows of it waiting.

A shortage that has just begun is borne by all alike: until a flow has taken a grace of some tokens it comes no later
than any other, and of such flows the earliest due goes first. So a shortage that soon passes makes nobody late alone.
While both wait, two flows of equal weight are served within 2 x (the dearest request + the tokens charged and not yet
settled) + the grace of each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from router.admission.pace import Pace
from router.core import Standing

Key = tuple[str, str]
# Idle flows kept; those at the floor are forgotten first, which loses nothing.
MAX_IDLE_FLOWS = 10_000


@dataclass(eq=False, slots=True)
class Flow:
    """`counter` is in tokens per weight; `crowds` are where it waits: its line's to write."""

    key: Key
    weight: float
    counter: float
    num_waiting: int = 0
    mean_output_tokens: float | None = None
    pace: Pace = field(default_factory=Pace)
    crowds: dict[Any, None] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        return self.key[0]

    def __repr__(self) -> str:
        return f"<Flow {'/'.join(filter(None, self.key))} at {self.counter:.0f}, {self.num_waiting} waiting>"


@dataclass(eq=False, slots=True)
class Flows:
    """The flows of one pool. Up to a counter of `level` all are equal; `open_tokens` are charged and not settled."""

    floor: float = 0.0
    level: float = 0.0
    open_tokens: float = 0.0
    _flows: dict[Key, Flow] = field(default_factory=dict)
    _num_active: dict[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._flows.values())

    def __len__(self) -> int:
        return len(self._flows)

    def get(self, standing: Standing) -> Flow:
        """The flow, a new one at the floor."""
        key = (standing.tenant, standing.flow)
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) > MAX_IDLE_FLOWS + len(self._num_active):
                self._forget_idle()
            flow = self._flows[key] = Flow(key, standing.weight, self.floor)
        elif flow.weight != standing.weight:
            flow.weight = standing.weight
        return flow

    def begin_shortage(self, grace_tokens: float) -> None:
        """Nobody waits, and somebody is about to: from now on each flow may take so many tokens before it counts."""
        self.level = self.floor + grace_tokens

    def turn_of(self, flow: Flow) -> float:
        """The lowest goes first; of equal ones, who is due first."""
        return flow.counter if flow.counter > self.level else self.level

    def begin_wait(self, flow: Flow) -> None:
        """One more of this flow waits. Nobody saves up: who did not wait before starts at the floor."""
        if flow.num_waiting == 0:
            flow.counter = max(flow.counter, self.floor)
            self._num_active[flow.tenant] = self._num_active.get(flow.tenant, 0) + 1
        flow.num_waiting += 1

    def end_wait(self, flow: Flow) -> None:
        flow.num_waiting -= 1
        if flow.num_waiting == 0:
            left = self._num_active[flow.tenant] - 1
            if left:
                self._num_active[flow.tenant] = left
            else:
                del self._num_active[flow.tenant]

    def serve(self, flow: Flow, num_tokens: float) -> float:
        """It gets its turn, with so many tokens in view. Returns the rate at which it was charged."""
        before = flow.counter
        if before > self.floor:
            self.floor = before
        elif not flow.num_waiting:
            before = self.floor
        rate = self._num_active.get(flow.tenant, 1) / flow.weight
        flow.counter = before + num_tokens * rate
        self.open_tokens += num_tokens
        return rate

    def settle(self, flow: Flow, num_tokens: float, charged_tokens: float, rate: float) -> None:
        """It took so many tokens where it was charged others, at the rate of that time; a refund never sinks an idle
        flow below what a newcomer gets."""
        flow.counter += (num_tokens - charged_tokens) * rate
        self.open_tokens -= charged_tokens
        if not flow.num_waiting and flow.counter < self.floor:
            flow.counter = self.floor

    def num_active(self, tenant: str) -> int:
        return self._num_active.get(tenant, 0)

    def _forget_idle(self) -> None:
        """First those that lose nothing by it; where all have been served of late, the longest known."""
        idle = [flow for flow in self._flows.values() if not flow.num_waiting]
        forgotten = [flow for flow in idle if flow.counter <= self.floor] or idle[: MAX_IDLE_FLOWS // 2]
        for flow in forgotten:
            del self._flows[flow.key]

    def __repr__(self) -> str:
        return f"<Flows {len(self._flows)}, floor {self.floor:.0f}>"
