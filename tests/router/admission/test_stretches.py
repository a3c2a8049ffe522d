from collections import Counter
from random import Random

from router.admission.flows import Flow
from router.admission.stretches import Stretches
from router.admission.waiters import Waiter, standing_of
from tests.router.nouns import make_demand


def test_the_longest_stretch_is_known_through_any_joins_and_leaves() -> None:
    random = Random(9)
    stretches: Stretches[None] = Stretches()
    flows = [Flow((name, ""), 1.0, 0.0) for name in "abcdef"]
    here: list[tuple[Flow, Waiter[None]]] = []
    demand = make_demand()
    for step in range(6000):
        if random.random() < 0.52 or not here:
            flow = random.choice(flows)
            waiter: Waiter[None] = Waiter(demand, None, standing_of(demand), 0.0, 0.0, step)
            stretches.push(flow, waiter)
            here.append((flow, waiter))
        else:
            flow, waiter = here.pop(random.randrange(len(here)))
            waiter.has_left = True
            stretches.discard_one(flow)
        lengths = Counter(flow.key[0] for flow, _ in here)
        assert all(stretches.length_of(flow) == lengths[flow.key[0]] for flow in flows)
        assert (stretches.num_waiting, stretches.num_flows) == (len(here), len(lengths))
        found = stretches.newest_of_longest()
        if here:
            assert found is not None
            assert found[0] == max(lengths.values())
            owner = next(flow for flow, waiter in here if waiter is found[1])
            assert lengths[owner.key[0]] == found[0]
            assert found[1] is [waiter for flow, waiter in here if flow is owner][-1]
        else:
            assert found is None
