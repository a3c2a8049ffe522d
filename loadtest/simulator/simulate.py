"""One run: a workload at one load through one policy on one fleet. Knows every part of the simulator; shows nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from engine.adapters import Adapter, AdapterSlots
from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.sampling import Sampling
from engine.scheduler import Scheduler
from engine.sequence import Request as EngineRequest
from loadtest.simulator.adapters import AdapterCosts
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.job import Ask, Job
from loadtest.simulator.knowledge import Wires
from loadtest.simulator.pairs import Links, roles
from loadtest.simulator.profile import overheads
from loadtest.simulator.replica import Fetch, Listener, SimReplica
from loadtest.simulator.sessions import Turn, Users
from loadtest.simulator.setup import WARM_UP_SHARE, Setup
from loadtest.simulator.station import Station, open_station
from loadtest.simulator.text import tokens
from loadtest.simulator.workload import Arrival
from router.choice import Handover
from router.core import Lease, Usage
from router.ports import HandoverPlan


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a run. `is_aborted`: it was stopped as soon as it could not attain what was asked any more."""

    jobs: list[Job]
    replicas: list[SimReplica]
    duration_s: float
    is_aborted: bool
    links: Links | None = None


def simulate(
    setup: Setup, min_attainment: float | None = None, on_done: Callable[[float], None] | None = None
) -> Finished:
    """Run to the end, or until fewer than `min_attainment` of all counted requests can meet the objective.

    `on_done` is told of the share of requests that have come, now and then. Raises PluginError where there is no such
    policy.
    """
    return _Run(setup, min_attainment, on_done).run()


@dataclass(eq=False, slots=True)
class _Run:
    setup: Setup
    min_attainment: float | None
    on_done: Callable[[float], None] | None
    loop: VirtualLoop = field(default_factory=VirtualLoop)
    replicas: dict[str, SimReplica] = field(init=False)
    stations: list[Station] = field(init=False)
    wires: Wires = field(init=False)
    jobs: list[Job] = field(default_factory=list)
    links: Links | None = None
    num_open: int = 0
    num_planned: int = 0
    num_missed: int = 0
    is_aborted: bool = False

    def __post_init__(self) -> None:
        ids = [f"replica-{number:04}" for number in range(self.setup.num_replicas)]
        if self.setup.pairs is not None:
            self.links = Links(self.loop, self.setup.pairs)
        self.replicas = {id: self._new_replica(id) for id in ids}
        self.stations = [self._new_station(number, ids) for number in range(self.setup.knowledge.routers)]
        self.wires = Wires(self.loop, self.setup.knowledge, list(self.replicas.values()), self.stations)

    def run(self) -> Finished:
        self.wires.open()
        workload = self.setup.workload
        if isinstance(workload, Users):
            self._closed_loop(workload)
        else:
            self._open_loop(workload.arrivals)
        if workload.num_requests:
            self.loop.run()
        return Finished(self.jobs, list(self.replicas.values()), self.loop.now, self.is_aborted, self.links)

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
            self._close,
            workload.block_size,
            setup.profile.kv_capacity_tokens // workload.block_size,
            workload.adapters,
            {} if setup.pairs is None else roles(setup.pairs, replica_ids),
        )
        station.is_fair = setup.knowledge.fair_shares
        return station

    def _open_loop(self, arrivals: Sequence[Arrival]) -> None:
        if arrivals:
            self._await(arrivals, 0)

    def _await(self, arrivals: Sequence[Arrival], number: int) -> None:
        self.loop.at(arrivals[number].at_s / self.setup.load, self._arrive, arrivals, number)

    def _arrive(self, arrivals: Sequence[Arrival], number: int) -> None:
        self._ask(arrivals[number].ask)
        if number + 1 < len(arrivals):
            self._await(arrivals, number + 1)

    def _closed_loop(self, users: Users) -> None:
        sessions = (users.session(number) for number in count())
        for _ in range(max(1, round(self.setup.load))):
            self._take_turn(next(sessions), sessions)

    def _take_turn(self, session: Iterator[Turn], sessions: Iterator[Iterator[Turn]]) -> None:
        """The next turn of a user, or the first of the next session in its place."""
        if self.num_planned == self.setup.workload.num_requests:
            return
        turn = next(session, None)
        while turn is None:
            session = next(sessions)
            turn = next(session, None)
        self.num_planned += 1
        self.loop.at(self.loop.now + turn.after_s, self._ask, turn.ask, partial(self._take_turn, session, sessions))

    def _ask(self, ask: Ask, on_answer: Callable[[], None] | None = None) -> None:
        number, num_requests = len(self.jobs), self.setup.workload.num_requests
        job = Job(ask, self.loop.now, is_counted=number >= WARM_UP_SHARE * num_requests, on_answer=on_answer)
        self.jobs.append(job)
        self.num_open += 1
        self.loop.at(self.loop.now + ask.ttft_limit_s, self._check_first_token, job)
        self.stations[number % len(self.stations)].accept(job)
        if self.on_done is not None and number % 64 == 0:
            self.on_done(number / num_requests)

    def _send(self, station: Station, job: Job, lease: Lease) -> None:
        pair = None if station.handovers is None else station.handovers.pair_of(lease)
        if pair is None:
            self._answer(station, job, lease)
        else:
            self._prefill(station, job, lease, pair)

    def _prefill(self, station: Station, job: Job, lease: Lease, pair: HandoverPlan) -> None:
        """The first of two replicas: its answer of one token ends its part, and the other begins with its KV."""
        assert isinstance(lease.decision, Handover)
        source = self.replicas[lease.decision.prefill.replica.id]
        request = self._request(job, num_output_tokens=1)

        def on_first_token(num_cached_tokens: int) -> None:
            job.num_cached_tokens = num_cached_tokens

        def on_end() -> None:
            pair.begun(Usage(job.ask.prompt.num_tokens, job.num_cached_tokens, 1))
            self._answer(station, job, lease, source)

        source.submit(request, Listener(on_first_token, on_end))

    def _answer(self, station: Station, job: Job, lease: Lease, source: SimReplica | None = None) -> None:
        """`source` has computed the prompt: what it had cached counts, not what comes from it."""
        ask, request = job.ask, self._request(job, job.ask.num_output_tokens)
        target, num_found = self.replicas[lease.replica.id], 0

        def on_first_token(num_cached_tokens: int) -> None:
            nonlocal num_found
            job.first_token_s, num_found = self.loop.now, num_cached_tokens
            if source is None:
                job.num_cached_tokens = num_cached_tokens
            lease.start()

        def on_end() -> None:
            job.ended_s = self.loop.now
            station.ended(lease, num_found, ask.num_output_tokens)
            if not job.meets_slo and _is_in_time(job):
                self._miss(job)
            self._close(job)

        fetch: Fetch | None = None
        if source is not None and self.links is not None:
            fetch = partial(self.links.fetch, source, target, request)
        target.submit(request, Listener(on_first_token, on_end), fetch)

    def _request(self, job: Job, num_output_tokens: int) -> EngineRequest:
        ask = job.ask
        return EngineRequest(
            id=str(ask.number),
            prompt=tokens(ask.text),
            sampling=Sampling(max_tokens=num_output_tokens, seed=ask.answer_token),
            arrived_s=self.loop.now,
            adapter=ask.adapter,
        )

    def _check_first_token(self, job: Job) -> None:
        if not _is_in_time(job):
            self._miss(job)

    def _close(self, job: Job) -> None:
        """Answered or refused: one request less is open; after the last the polls would go on for ever."""
        self.num_open -= 1
        if job.on_answer is not None:
            job.on_answer()
        if not self.num_open and len(self.jobs) == self.setup.workload.num_requests:
            self.loop.stop()

    def _miss(self, job: Job) -> None:
        """One more that does not meet the objective, known as early as can be."""
        self.num_missed += job.is_counted
        num_counted = (1 - WARM_UP_SHARE) * self.setup.workload.num_requests
        if self.min_attainment is not None and self.num_missed > (1 - self.min_attainment) * num_counted:
            self.is_aborted = True
            self.loop.stop()


def _is_in_time(job: Job) -> bool:
    return job.ttft_s is not None and job.ttft_s <= job.ask.ttft_limit_s
