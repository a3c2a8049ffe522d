"""A fleet of a few replicas behind one published policy, step by step."""

from dataclasses import dataclass, field
from random import Random

from router.core import Candidate, Decision, Demand, Lease, Outcome, Prompt
from router.ports import Policy
from router.routing.presets import open_parts, preset
from tests.router.nouns import FakeClock, make_candidate, make_demand, make_prompt, make_view


@dataclass(eq=False)
class Rig:
    """`held` are matched tokens by replica name; fields of replicas are set on `fleet[name].replica`."""

    policy_name: str
    names: str = "abc"
    clock: FakeClock = field(default_factory=FakeClock)
    policy: Policy = field(init=False)
    fleet: dict[str, Candidate] = field(init=False)

    def __post_init__(self) -> None:
        self.policy = preset(self.policy_name, open_parts(), Random(1), max_in_flight=10_000)
        self.fleet = {name: make_candidate(name) for name in self.names}

    def put(self, field_name: str, **values: object) -> None:
        for name, value in values.items():
            setattr(self.fleet[name].replica, field_name, value)

    def decide(self, prompt: Prompt | None = None, **held: int) -> Decision:
        demand = self.demand(prompt)
        seen = [Candidate(each.replica, held.get(name, 0)) for name, each in self.fleet.items()]
        decision = self.policy.decide(demand, make_view(seen, self.clock.now))
        assert decision is not None
        return decision

    def choose(self, prompt: Prompt | None = None, **held: int) -> str:
        return self.decide(prompt, **held).replica.id

    def often(self, prompt: Prompt | None = None, **held: int) -> set[str]:
        """All that are chosen in a hundred tries."""
        return {self.choose(prompt, **held) for _ in range(100)}

    def place(self, name: str, prompt: Prompt | None = None, matched_tokens: int = 0) -> Lease:
        """As if the policy had chosen this one."""
        demand, replica = self.demand(prompt), self.fleet[name].replica
        num_new = demand.prompt.num_tokens - matched_tokens
        decision = Decision(replica, self.policy_name, matched_tokens, num_new, 0.0, {})
        lease = Lease(demand, decision, self.clock.now, lambda _: None, lambda _: None)
        self.policy.placed(lease)
        return lease

    def demand(self, prompt: Prompt | None = None) -> Demand:
        return make_demand(prompt=prompt or make_prompt(160), arrived=self.clock.now)


def end(lease: Lease) -> None:
    lease.release(Outcome.OK)
