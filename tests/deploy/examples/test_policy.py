"""The example of a policy of one's own, as its file says it."""

from pathlib import Path
from random import Random

from router.core import Standing
from router.ports import Policy
from router.routing.presets import open_parts, open_policy
from tests.router.nouns import make_candidate, make_demand, make_view

RECIPE = Path("deploy/examples/policy/dedicated.toml")


def chosen(policy: Policy, tenant: str | None, *names: str) -> str | None:
    demand = make_demand(standing=None if tenant is None else Standing(tenant))
    decision = policy.decide(demand, make_view([make_candidate(name) for name in names]))
    return None if decision is None else decision.replica.id


def test_some_replicas_are_one_tenants_alone() -> None:
    policy = open_policy(str(RECIPE), open_parts(), Random(1), 8)
    fleet = ("gpu-1:8000", "gpu-7:8000")
    for _ in range(20):
        assert chosen(policy, "research", *fleet) == "gpu-7:8000"
        assert chosen(policy, "sales", *fleet) == "gpu-1:8000"
        assert chosen(policy, None, *fleet) == "gpu-1:8000"
    assert chosen(policy, "research", "gpu-1:8000") is None
