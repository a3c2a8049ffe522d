"""What tests of the data path stand on: a station (the real proxy, gate, queue, placement and registry, over replicas
that nobody probes and a clock that stands), and a client and replicas in memory. The replica on a socket is in
`contracts/hostile.py`.
"""

import asyncio
import logging
import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router.admission.gate import Gate
from router.admission.queue import LocalQueue
from router.core import Attempt, Headers, Lease, Outcome, Pool, Prompt, Request
from router.errors import ConnectFailed, UpstreamError
from router.placement import Placement
from router.ports import Flow, Sink, Upstream
from router.prefix.index import BlockIndex
from router.proxy import Proxy, ProxyLimits
from router.relay import Relay, RelayTimes
from router.replicas.member import Member
from router.replicas.registry import Registry
from router.retries import RetryBudget
from router.routing.presets import open_parts, preset
from router.spec import ReplicaSpec
from router.telemetry.journal import Journal
from router.telemetry.metrics import Metrics
from tests.router.nouns import FakeClock, make_prompt
from tests.router.replicas.fakes import Fleet, make_identity

PATIENCE_S = 30.0
EVENT_STREAM: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
JSON: Headers = (("content-type", "application/json"),)


async def turns(number: int = 20) -> None:
    """Let what is ready run, where a test asserts that something does *not* happen."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Turn the loop until it is so: everything that a test waits for happens in this process."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await turns(1)


@dataclass(eq=False)
class FakeReply:
    """A client in memory. `answer` is what it was sent; it reads slowly, and leaves, when the test says so."""

    flow: Flow | None = None
    status: int | None = None
    headers: Headers = ()
    payloads: list[bytes] = field(default_factory=list)
    outcome: Outcome | None = None
    is_complete: bool = False

    def bind(self, flow: Flow) -> None:
        self.flow = flow

    def head(self, status: int, headers: Headers, own: Headers = (), length: int | None = None) -> None:
        assert self.status is None, "a second head"
        self.status, self.headers = status, (*headers, *own, *_length_field(length))

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        assert self.status is not None, "a payload before the head"
        assert self.outcome is None, "a payload after the end"
        self.payloads.append(payload)

    def end(self, outcome: Outcome, *, is_complete: bool) -> None:
        assert self.outcome is None, "a second end"
        self.outcome, self.is_complete = outcome, is_complete

    def leave(self) -> None:
        """Go away, unless the answer has ended."""
        if self.flow is not None and self.outcome is None:
            self.flow.gone()

    @property
    def answer(self) -> bytes:
        return b"".join(self.payloads)


@dataclass(eq=False)
class FakeExchange:
    """An attempt in memory. The test plays the replica: `head`, `send`, `end`, `fail`; none is heard after an abort."""

    attempt: Attempt
    sink: Sink | None
    is_paused: bool = False
    is_aborted: bool = False
    has_head: bool = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def abort(self) -> None:
        self.is_aborted, self.sink = True, None

    def head(self, status: int = 200, headers: Headers = EVENT_STREAM) -> None:
        self.has_head = True
        if self.sink is not None:
            self.sink.on_head(status, *_without_length(headers))

    def send(self, payload: bytes) -> None:
        if self.sink is not None:
            self.sink.on_body(payload, None)

    def end(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_end()

    def fail(self, error: UpstreamError) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_error(error)

    def answer(self, status: int, body: bytes, headers: Headers = JSON) -> None:
        self.head(status, headers)
        self.send(body)
        self.end()


@dataclass(eq=False)
class FakeUpstream:
    """Replicas in memory. Ids in `refusing` cannot be reached; while `may_connect` is clear, connecting never ends.

    `has_idle`: there is an idle connection to each replica, so that nothing need be connected.
    """

    exchanges: list[FakeExchange] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)
    may_connect: asyncio.Event = field(default_factory=asyncio.Event)
    num_connecting: int = 0
    has_idle: bool = False

    def __post_init__(self) -> None:
        self.may_connect.set()

    def open_now(self, attempt: Attempt, sink: Sink) -> FakeExchange | None:
        return self._begin(attempt, sink) if self.has_idle else None

    async def open(self, attempt: Attempt, sink: Sink) -> FakeExchange:
        self.num_connecting += 1
        try:
            await self.may_connect.wait()
        finally:
            self.num_connecting -= 1
        if attempt.replica.id in self.refusing:
            raise ConnectFailed("refused")
        return self._begin(attempt, sink)

    async def close(self) -> None:
        for exchange in self.exchanges:
            exchange.abort()

    def _begin(self, attempt: Attempt, sink: Sink) -> FakeExchange:
        self.exchanges.append(FakeExchange(attempt, sink))
        return self.exchanges[-1]

    @property
    def num_live(self) -> int:
        return sum(exchange.sink is not None for exchange in self.exchanges)


@dataclass(eq=False)
class FakePrompts:
    """So many tokens for whatever is asked, other blocks for other bodies. While `may_read` is clear, reading never
    ends."""

    num_tokens: int = 64
    may_read: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_read.set()

    async def read(self, request: Request, pool: Pool, adapter: str | None) -> Prompt:
        await self.may_read.wait()
        return make_prompt(self.num_tokens, first_hash=zlib.crc32(request.body))


class Station:
    """The data path of one router, wired as the composition root does it, over replicas that are ready at once.

    `leases` holds every lease ever taken. A replica serves the model `m`.
    """

    def __init__(
        self,
        upstream: Upstream,
        specs: Iterable[ReplicaSpec],
        *,
        clock: FakeClock | None = None,
        max_open_requests: int = 10_000,
        max_in_flight: int = 8,
        max_waiting: int = 10_000,
        max_wait_s: float = 30.0,
        retries: float = 10.0,
        times: RelayTimes | None = None,
        **limits: float,
    ) -> None:
        self.clock = clock or FakeClock()
        self.upstream = upstream
        self.gate = Gate(max_open_requests)
        self.prompts = FakePrompts()
        self.metrics = Metrics()
        self.relays: set[Relay] = set()
        self.leases: list[Lease] = []
        self.registry = self._open_registry(specs)
        policy = preset("pointsman", open_parts(), random.Random(7), max_in_flight)
        registry, index = self.registry, BlockIndex(2**20)
        self.placement = Placement(
            registry.available, registry.has_ready, self._reserve(registry), index, policy, self.clock
        )
        self.queue = LocalQueue(self.placement, self.clock, max_waiting, max_wait_s)
        registry.on_change = self.queue.pump
        self.budget = RetryBudget(ratio=0.2, saved=retries)
        self.proxy = Proxy(
            gate=self.gate,
            find=registry.find,
            known=registry.known,
            prompts=self.prompts,
            queue=self.queue,
            placer=self.placement,
            upstream=upstream,
            clock=self.clock,
            limits=ProxyLimits(**{"retry_jitter_s": 0.0, **limits}),  # type: ignore[arg-type]
            times=times or RelayTimes(),
            budget=self.budget,
            journal=Journal(self.metrics, logging.getLogger("tests.station")),
            open_relays=self.relays,
        )

    def member(self, replica_id: str) -> Member:
        return self.registry._members[replica_id]

    def tick(self, seconds: float) -> None:
        """Let time pass, and every relay look at the clock."""
        self.clock.now += seconds
        for relay in list(self.relays):
            relay.tick(self.clock.now)

    @property
    def outcomes(self) -> list[Outcome | None]:
        """How each lease ended, in the order in which they were taken."""
        return [lease.outcome for lease in self.leases]

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults in a row that count against each replica, those with none left out."""
        members = self.registry._members
        return {id: member.breaker.num_faults for id, member in members.items() if member.breaker.num_faults}

    @property
    def left_over(self) -> Mapping[str, int]:
        """Counts that are not zero: empty once nobody is served any more."""
        counts = {
            "open requests": self.gate.num_open,
            "waiting": self.queue.num_waiting,
            "relays": len(self.relays),
            "open leases": sum(lease.outcome is None for lease in self.leases),
        }
        for replica in self.registry.replicas():
            counts[f"in flight on {replica.id}"] = replica.in_flight
            counts[f"prefilling on {replica.id}"] = replica.prefilling
            counts[f"tokens in prefill on {replica.id}"] = replica.prefilling_tokens
        return {name: count for name, count in counts.items() if count}

    def _open_registry(self, specs: Iterable[ReplicaSpec]) -> Registry:
        """A registry that has heard of every replica what its watch would tell."""
        registry = Registry(
            Fleet(),
            on_change=lambda: None,  # until the queue is there
            on_lost=lambda _: None,
            on_identified=lambda *_: None,
            clock=self.clock,
            random=lambda: 0.0,
        )
        registry.reconcile(specs)
        for member in registry._members.values():
            registry._identified(member, make_identity("m"), None)
            registry._good(member)
        return registry

    def _reserve(self, registry: Registry) -> Callable[..., Lease]:
        def reserve(*chosen: object) -> Lease:
            lease = registry.reserve(*chosen)  # type: ignore[arg-type]
            self.leases.append(lease)
            return lease

        return reserve


def specs_of(names: Sequence[str]) -> list[ReplicaSpec]:
    return [ReplicaSpec(f"http://{name}") for name in names]


def _length_field(length: int | None) -> Headers:
    return () if length is None else (("content-length", str(length)),)


def _without_length(headers: Headers) -> tuple[Headers, int | None]:
    """As an upstream takes a head apart."""
    length = dict(headers).get("content-length")
    rest = tuple(pair for pair in headers if pair[0] != "content-length")
    return rest, None if length is None else int(length)
