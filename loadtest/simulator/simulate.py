"""One run: a workload at one load through one policy on one fleet. Knows every part of the simulator; shows nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request as EngineRequest
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.fresh import FreshIndex
from loadtest.simulator.job import Job
from loadtest.simulator.profile import Profile, overheads
from loadtest.simulator.replica import Listener, SimReplica
from loadtest.simulator.station import Station, ended, open_station
from loadtest.simulator.text import tokens
from loadtest.simulator.workload import Workload
from router.core import Lease

# The first tenth of the requests warms the caches.
WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run's result depends on, beside the code. `load` divides the times of the workload."""

    workload: Workload
    profile: Profile
    num_replicas: int
    policy: str
    load: float
    seed: int = 0
    can_stretch: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a run. `is_aborted`: it was stopped as soon as it could not attain what was asked any more."""

    jobs: list[Job]
    replicas: list[SimReplica]
    duration_s: float
    is_aborted: bool


def simulate(
    setup: Setup, min_attainment: float | None = None, on_done: Callable[[int], None] | None = None
) -> Finished:
    """Run to the end, or until fewer than `min_attainment` of all counted requests can meet the objective.

    `on_done` is told of the arrivals so far, now and then.
    """
    return _Run(setup, min_attainment, on_done).run()


@dataclass(eq=False, slots=True)
class _Run:
    setup: Setup
    min_attainment: float | None
    on_done: Callable[[int], None] | None
    loop: VirtualLoop = field(default_factory=VirtualLoop)
    replicas: dict[str, SimReplica] = field(init=False)
    station: Station = field(init=False)
    jobs: list[Job] = field(default_factory=list)
    num_missed: int = 0
    is_aborted: bool = False
    _numbers: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        setup = self.setup
        ids = [f"replica-{number:04}" for number in range(setup.num_replicas)]
        self.replicas = {id: self._new_replica(id) for id in ids}
        pools = {id: replica.core.scheduler.pool for id, replica in self.replicas.items()}
        self.station = open_station(
            self.loop, ids, FreshIndex(pools), setup.policy, setup.seed, self._send, setup.workload.block_size
        )

    def run(self) -> Finished:
        if self.setup.workload.arrivals:
            self._await_arrival(0)
        self.loop.run()
        return Finished(self.jobs, list(self.replicas.values()), self.loop.now, self.is_aborted)

    def _new_replica(self, id: str) -> SimReplica:
        profile, block_size = self.setup.profile, self.setup.workload.block_size
        pool = BlockPool(profile.kv_capacity_tokens // block_size, block_size)
        scheduler = Scheduler(pool, profile.max_num_seqs, profile.max_num_batched_tokens)
        return SimReplica(id, self.loop, EngineCore(scheduler), profile, overheads(), self.setup.can_stretch)

    def _await_arrival(self, number: int) -> None:
        arrivals = self.setup.workload.arrivals
        if number < len(arrivals):
            self.loop.at(arrivals[number].at_s / self.setup.load, self._arrive, number)

    def _arrive(self, number: int) -> None:
        num_arrivals = len(self.setup.workload.arrivals)
        ask = self.setup.workload.arrivals[number].ask
        job = Job(ask, self.loop.now, is_counted=number >= WARM_UP_SHARE * num_arrivals)
        self.jobs.append(job)
        self.loop.at(self.loop.now + ask.ttft_limit_s, self._check_first_token, job)
        self.station.accept(job)
        self._await_arrival(number + 1)
        if self.on_done is not None and number % 64 == 0:
            self.on_done(number)

    def _send(self, job: Job, lease: Lease) -> None:
        ask = job.ask
        request = EngineRequest(
            id=str(ask.number),
            prompt=tokens(ask.text),
            sampling=Sampling(max_tokens=ask.num_output_tokens, seed=ask.answer_token),
            arrived_s=self.loop.now,
        )

        def on_first_token(num_cached_tokens: int) -> None:
            job.first_token_s, job.num_cached_tokens = self.loop.now, num_cached_tokens
            lease.start()

        def on_end() -> None:
            job.ended_s = self.loop.now
            ended(lease, ask.num_output_tokens)
            if not job.meets_slo and _is_in_time(job):
                self._miss(job)

        assert job.replica_id is not None
        self.replicas[job.replica_id].submit(request, Listener(on_first_token, on_end))

    def _check_first_token(self, job: Job) -> None:
        if not _is_in_time(job):
            self._miss(job)

    def _miss(self, job: Job) -> None:
        """One more that does not meet the objective, known as early as can be."""
        self.num_missed += job.is_counted
        num_counted = (1 - WARM_UP_SHARE) * len(self.setup.workload.arrivals)
        if self.min_attainment is not None and self.num_missed > (1 - self.min_attainment) * num_counted:
            self.is_aborted = True
            self.loop.stop()


def _is_in_time(job: Job) -> bool:
    return job.ttft_s is not None and job.ttft_s <= job.ask.ttft_limit_s
