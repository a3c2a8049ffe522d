"""One run: a workload at one load through one policy on one fleet. Knows every part of the simulator; shows nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.adapters import Adapter, AdapterSlots
from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request as EngineRequest
from loadtest.simulator.adapters import AdapterCosts
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.job import Job
from loadtest.simulator.knowledge import Knowledge, Wires
from loadtest.simulator.profile import Profile, overheads
from loadtest.simulator.replica import Listener, SimReplica
from loadtest.simulator.station import Station, open_station
from loadtest.simulator.text import tokens
from loadtest.simulator.workload import Workload
from router.core import Lease

# The first tenth of the requests warms the caches.
WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Lora:
    """Every replica's adapters: slots on the device and in host memory, bytes of each, and how much longer a step takes
    for each distinct one in it."""

    num_slots: int
    num_host_slots: int
    num_bytes: int
    step_share: float


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run's result depends on, beside the code. `load` divides the times of the workload."""

    workload: Workload
    profile: Profile
    num_replicas: int
    policy: str
    load: float
    seed: int = 0
    host_tokens: int = 0
    lora: Lora | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)
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

    `on_done` is told of the arrivals so far, now and then. Raises PluginError where there is no such policy.
    """
    return _Run(setup, min_attainment, on_done).run()


@dataclass(eq=False, slots=True)
class _Run:
    setup: Setup
    min_attainment: float | None
    on_done: Callable[[int], None] | None
    loop: VirtualLoop = field(default_factory=VirtualLoop)
    replicas: dict[str, SimReplica] = field(init=False)
    stations: list[Station] = field(init=False)
    wires: Wires = field(init=False)
    jobs: list[Job] = field(default_factory=list)
    num_open: int = 0
    num_missed: int = 0
    is_aborted: bool = False

    def __post_init__(self) -> None:
        ids = [f"replica-{number:04}" for number in range(self.setup.num_replicas)]
        self.replicas = {id: self._new_replica(id) for id in ids}
        self.stations = [self._new_station(number, ids) for number in range(self.setup.knowledge.routers)]
        self.wires = Wires(self.loop, self.setup.knowledge, list(self.replicas.values()), self.stations)

    def run(self) -> Finished:
        self.wires.open()
        if self.setup.workload.arrivals:
            self._await_arrival(0)
            self.loop.run()
        return Finished(self.jobs, list(self.replicas.values()), self.loop.now, self.is_aborted)

    def _new_replica(self, id: str) -> SimReplica:
        setup, block_size = self.setup, self.setup.workload.block_size
        profile, lora = setup.profile, setup.lora
        num_blocks, num_host_blocks = profile.kv_capacity_tokens // block_size, setup.host_tokens // block_size
        pool = BlockPool(num_blocks, block_size, num_host_blocks, records_changes=True)
        slots = AdapterSlots(0 if lora is None else lora.num_slots)
        for name in setup.workload.adapters:
            slots.add(Adapter(name, name, rank=0, digest=0, load=slots.next_load()))
        scheduler = Scheduler(pool, profile.max_num_seqs, profile.max_num_batched_tokens, slots)
        return SimReplica(
            id,
            self.loop,
            EngineCore(scheduler),
            profile,
            overheads(),
            on_changes=lambda id, changes: self.wires.on_changes(id, changes),
            adapter_costs=None if lora is None else AdapterCosts(lora.num_bytes, lora.num_host_slots, lora.step_share),
            can_stretch=setup.can_stretch,
        )

    def _new_station(self, number: int, replica_ids: Sequence[str]) -> Station:
        setup, workload = self.setup, self.setup.workload
        station = open_station(
            self.loop,
            replica_ids,
            setup.policy,
            setup.seed + number,
            lambda job, lease: self._send(station, job, lease),
            workload.block_size,
            setup.profile.kv_capacity_tokens // workload.block_size,
            workload.adapters,
        )
        return station

    def _await_arrival(self, number: int) -> None:
        arrivals = self.setup.workload.arrivals
        if number < len(arrivals):
            self.loop.at(arrivals[number].at_s / self.setup.load, self._arrive, number)

    def _arrive(self, number: int) -> None:
        num_arrivals = len(self.setup.workload.arrivals)
        ask = self.setup.workload.arrivals[number].ask
        job = Job(ask, self.loop.now, is_counted=number >= WARM_UP_SHARE * num_arrivals)
        self.jobs.append(job)
        self.num_open += 1
        self.loop.at(self.loop.now + ask.ttft_limit_s, self._check_first_token, job)
        self.stations[number % len(self.stations)].accept(job)
        self._await_arrival(number + 1)
        if self.on_done is not None and number % 64 == 0:
            self.on_done(number)

    def _send(self, station: Station, job: Job, lease: Lease) -> None:
        ask = job.ask
        request = EngineRequest(
            id=str(ask.number),
            prompt=tokens(ask.text),
            sampling=Sampling(max_tokens=ask.num_output_tokens, seed=ask.answer_token),
            arrived_s=self.loop.now,
            adapter=ask.adapter,
        )

        def on_first_token(num_cached_tokens: int) -> None:
            job.first_token_s, job.num_cached_tokens = self.loop.now, num_cached_tokens
            lease.start()

        def on_end() -> None:
            job.ended_s = self.loop.now
            station.ended(lease, job.num_cached_tokens, ask.num_output_tokens)
            if not job.meets_slo and _is_in_time(job):
                self._miss(job)
            self._close()

        assert job.replica_id is not None
        self.replicas[job.replica_id].submit(request, Listener(on_first_token, on_end))

    def _check_first_token(self, job: Job) -> None:
        if not _is_in_time(job):
            self._miss(job)
        if job.is_refused:
            self._close()

    def _close(self) -> None:
        """One request less is open; after the last the polls would go on for ever."""
        self.num_open -= 1
        if not self.num_open and len(self.jobs) == len(self.setup.workload.arrivals):
            self.loop.stop()

    def _miss(self, job: Job) -> None:
        """One more that does not meet the objective, known as early as can be."""
        self.num_missed += job.is_counted
        num_counted = (1 - WARM_UP_SHARE) * len(self.setup.workload.arrivals)
        if self.min_attainment is not None and self.num_missed > (1 - self.min_attainment) * num_counted:
            self.is_aborted = True
            self.loop.stop()


def _is_in_time(job: Job) -> bool:
    return job.ttft_s is not None and job.ttft_s <= job.ask.ttft_limit_s
