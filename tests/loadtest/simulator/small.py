"""A workload and a fleet so small that a run takes milliseconds."""

import random
from dataclasses import replace

from loadtest.simulator.knowledge import Knowledge
from loadtest.simulator.profile import Profile, profile
from loadtest.simulator.setup import Lora, Setup
from loadtest.simulator.workload import Arrival, Workload, Writer

BLOCK_SIZE = 64
PROFILE: Profile = replace(profile("llama3-8b-h100-tp1"), kv_capacity_tokens=200 * BLOCK_SIZE)


def workload(num_requests: int = 120, seed: int = 0, adapters: tuple[str, ...] = ()) -> Workload:
    """Requests at some twenty a second that share one of eight beginnings."""
    chance = random.Random(seed)
    writer = Writer(PROFILE, BLOCK_SIZE)
    arrivals, at_s = [], 0.0
    for number in range(num_requests):
        at_s += chance.expovariate(20.0)
        head = chance.randrange(8)
        text = ((writer.ids["head", head], 1024), (writer.ids["tail", number], chance.randrange(1, 900)))
        adapter = chance.choice(adapters) if adapters else None
        arrivals.append(Arrival(at_s, writer.ask(number, text, chance.randrange(1, 80), adapter=adapter)))
    return Workload(tuple(arrivals), BLOCK_SIZE, adapters)


def setup(
    policy: str = "pointsman",
    *,
    num_requests: int = 120,
    num_replicas: int = 3,
    load: float = 1.0,
    seed: int = 0,
    host_tokens: int = 0,
    knowledge: Knowledge | None = None,
    lora: Lora | None = None,
    adapters: tuple[str, ...] = (),
    can_stretch: bool = True,
) -> Setup:
    return Setup(
        workload=workload(num_requests, seed, adapters),
        profile=PROFILE,
        num_replicas=num_replicas,
        policy=policy,
        load=load,
        seed=seed,
        host_tokens=host_tokens,
        lora=lora,
        knowledge=knowledge or Knowledge(),
        can_stretch=can_stretch,
    )
