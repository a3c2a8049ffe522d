"""What fair shares cost and what they are worth, in the fleet that is simulated: how much less it can serve than in one
order for all, and how far apart tenants get where there is more to do than it can. Knows scenarios and runs; prints
nothing.
"""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from msgspec.structs import replace

from loadtest.errors import LoadError
from loadtest.simulator.capacity import MIN_ATTAINMENT, find_capacity
from loadtest.simulator.job import Job
from loadtest.simulator.scenario import Scenario, load_scenario
from loadtest.simulator.setup import Setup
from loadtest.simulator.simulate import Finished, simulate
from loadtest.simulator.summary import Summary, summarise
from loadtest.simulator.workload import Workload

SCENARIO, POLICY = "w8", "pointsman"
# Where the search begins and its steps; loads closer than this ratio are one.
START, STEP, RESOLUTION = 38.0, 1.06, 1.01
# The load, in capacities, at which tenants are compared.
OVERLOAD = 1.2


@dataclass(frozen=True, slots=True)
class Gap:
    """`tokens`: how much more one of two tenants was served than the other while both waited, at most. A tenant is
    served the uncached prompt and the output of a request when that has its place. `bound`: twice the larger of the
    dearest request and of what was in flight at most, which is what virtual token counters promise."""

    tokens: int
    bound: int


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of the trace: loads of 90 % attainment in one order and with fair shares; and for both, the gap and
    the light tenants' first tokens (p99) at so much more than capacity."""

    begin_s: float
    one_order: float
    fair: float
    gaps: tuple[Gap, Gap]
    light_p99_ms: tuple[float, float]

    @property
    def cost(self) -> float:
        """The share of capacity that fair shares cost."""
        return 1.0 - self.fair / self.one_order


def measure(begin_s: float, seed: int) -> Window:
    """Raises LoadError where the fleet serves every load or none."""
    scenario = replace(load_scenario(SCENARIO), begin_s=begin_s)
    workload = scenario.workload(seed)
    assert isinstance(workload, Workload)  # it replays a trace
    run = partial(_run, scenario, workload, seed)
    one_order = _capacity(START, partial(_attempt, run, seed, is_fair=False))
    fair = _capacity(one_order, partial(_attempt, run, seed, is_fair=True))
    over = [run(OVERLOAD * one_order, None, is_fair=is_fair) for is_fair in (False, True)]
    light_ms = [summarise(each, OVERLOAD * one_order, seed).light_ttft_ms.p99 for each in over]
    gaps = [gap(each.jobs) for each in over]
    return Window(begin_s, one_order, fair, (gaps[0], gaps[1]), (light_ms[0], light_ms[1]))


def gap(jobs: Sequence[Job]) -> Gap:
    """Over all jobs of a run that were served."""
    done = [job for job in jobs if job.placed_s is not None and job.ended_s is not None]
    waiting, gains = Counter[str](), dict[tuple[str, str], tuple[float, float]]()
    served, worst, in_flight, most_in_flight = Counter[str](), 0.0, 0, 0
    for _, tenant, num_waiting, num_served, num_open in sorted(_events(done), key=lambda event: event[0]):
        waiting[tenant] += num_waiting
        served[tenant] += num_served
        in_flight += num_open
        most_in_flight = max(most_in_flight, in_flight)
        here = [name for name in waiting if waiting[name]]
        if not waiting[tenant]:
            gains = {pair: gained for pair, gained in gains.items() if tenant not in pair}
        for pair in combinations(sorted(here), 2):
            if tenant in pair:
                lead = served[pair[0]] - served[pair[1]]
                low, high = gains.get(pair, (lead, lead))
                gains[pair] = low, high = min(low, lead), max(high, lead)
                worst = max(worst, high - low)
    dearest = max((_tokens(job) for job in done), default=0)
    return Gap(round(worst), 2 * max(dearest, most_in_flight))


def _events(jobs: Iterable[Job]) -> Iterator[tuple[float, str, int, int, int]]:
    """When, whose, and what changes: how many wait, what was served, what is in flight."""
    for job in jobs:
        assert job.placed_s is not None
        assert job.ended_s is not None
        tenant, num_tokens = job.ask.tenant or "", _tokens(job)
        if job.placed_s > job.arrived_s:
            yield job.arrived_s, tenant, 1, 0, 0
        yield job.placed_s, tenant, -1 if job.placed_s > job.arrived_s else 0, num_tokens, num_tokens
        yield job.ended_s, tenant, 0, 0, -num_tokens


def _tokens(job: Job) -> int:
    return job.ask.prompt.num_tokens - job.num_cached_tokens + job.ask.num_output_tokens


def _capacity(start: float, attempt: partial[Summary]) -> float:
    found = find_capacity(start, attempt, RESOLUTION, STEP)
    if found.load is None or found.is_least:
        raise LoadError(f"no load of {SCENARIO} is just too high")
    return found.load


def _attempt(run: partial[Finished], seed: int, load: float, *, is_fair: bool) -> Summary:
    return summarise(run(load, MIN_ATTAINMENT, is_fair=is_fair), load, seed)


def _run(
    scenario: Scenario, workload: Workload, seed: int, load: float, min_attainment: float | None, *, is_fair: bool
) -> Finished:
    setup = Setup(
        workload=workload,
        profile=scenario.engine,
        num_replicas=scenario.replicas,
        policy=POLICY,
        load=load,
        seed=seed,
        knowledge=replace(scenario.knowledge, fair_shares=is_fair),
    )
    gc.disable()  # a run leaves few cycles behind, and looking for them takes a fifth of its time
    try:
        return simulate(setup, min_attainment)
    finally:
        gc.enable()
