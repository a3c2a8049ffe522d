"""Two loops over each replica: is it well, and what has it to do. Knows when to ask whom, and tells the registry what
came of it; decides nothing. Its tasks live in the task group of whoever runs it.

Every wait is bounded: a replica that hangs delays only its own loops. A probe is due at a fixed pace from the start of
the last, and at once when a request's failure makes a replica suspect.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import aiohttp

from router.core import ReplicaState
from router.errors import BadAnswer, UpstreamError
from router.ports import Clock
from router.replicas.distance import measure
from router.replicas.health import probe
from router.replicas.identify import Card, Identity, TokenizerDocument, identify, list_models
from router.replicas.load import (
    find_page,
    parse_block_size,
    parse_engine,
    parse_load,
    parse_num_blocks,
    parse_slots,
    read_page,
)
from router.replicas.member import Member
from router.replicas.waking import is_asleep

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often, and how long to wait for an answer."""

    probe_interval_s: float = 2.0
    probe_timeout_s: float = 2.0
    identify_timeout_s: float = 10.0
    models_interval_s: float = 30.0
    load_interval_s: float = 0.5
    load_max_age_s: float = 5.0
    distance_interval_s: float = 30.0


@dataclass(eq=False, slots=True)
class Watch:
    """`on_identified` comes before the first `on_good` of a replica that came, or came back; `on_relisted` when its
    adapters changed; `on_lighter` when its own report shows less foreign work; `on_report` with each report, and when
    one is too old. `before_report` is called before our own counts are compared with a report."""

    session: aiohttp.ClientSession
    group: asyncio.TaskGroup
    pace: Pace
    clock: Clock
    on_good: Callable[[Member], None]
    on_bad: Callable[[Member, UpstreamError], None]
    on_identified: Callable[[Member, Identity, TokenizerDocument | None], None]
    on_relisted: Callable[[Member], None]
    on_lighter: Callable[[], None]
    on_report: Callable[[Member], None] = field(default=lambda _: None)
    before_report: Callable[[], None] = field(default=lambda: None)
    on_asleep: Callable[[Member], None] = field(default=lambda _: None)
    _tasks: dict[Member, list[asyncio.Task[None]]] = field(default_factory=dict, init=False)

    def start(self, member: Member) -> None:
        id = member.replica.id
        self._tasks[member] = [
            self.group.create_task(self._probe_forever(member), name=f"probe {id}"),
            self.group.create_task(self._poll_forever(member), name=f"load of {id}"),
        ]

    def stop(self, member: Member) -> None:
        for task in self._tasks.pop(member, []):
            task.cancel()

    async def _probe_forever(self, member: Member) -> None:
        while True:
            member.wants_probe.clear()
            due = self.clock() + self.pace.probe_interval_s
            await self._probe(member)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - self.clock()):
                    await member.wants_probe.wait()

    async def _poll_forever(self, member: Member) -> None:
        while True:
            due = self.clock() + self.pace.load_interval_s
            if member.metrics_path is not None and member.replica.state in (ReplicaState.READY, ReplicaState.DRAINING):
                await self._poll(member, member.metrics_path)
            if member.age(self.clock(), self.pace.load_max_age_s):
                self.on_report(member)
                self.on_lighter()
            await asyncio.sleep(max(0.0, due - self.clock()))

    async def _probe(self, member: Member) -> None:
        if member.replica.spec.models:
            self._trust(member)
            return
        try:
            await probe(self.session, member.replica.spec, self.pace.probe_timeout_s)
            await self._learn(member)
        except UpstreamError as error:
            self.on_bad(member, error)
        except Exception:
            # What one replica says of itself must not end the watch over the others.
            log.exception("cannot make out what %s serves", member.replica.id)
            self.on_bad(member, BadAnswer(f"cannot make out what {member.replica.id} serves"))
        else:
            await self._measure(member)
            self.on_asleep(member) if await self._is_asleep(member) else self.on_good(member)

    async def _measure(self, member: Member) -> None:
        """How far away it is, now and then, unless that was said."""
        now = self.clock()
        if member.distance.said_s is not None or now - member.measured_at < self.pace.distance_interval_s:
            return
        member.measured_at = now
        seconds = await measure(member.replica.spec.url, self.pace.probe_timeout_s)
        if seconds is not None:
            member.distance.learn(seconds, member.replica)

    def _trust(self, member: Member) -> None:
        """An outside provider is asked nothing: its breaker sees by the answers whether it is well."""
        if member.must_identify:
            spec = member.replica.spec
            cards = tuple(Card(name, owned_by=urlsplit(spec.url).hostname or "unknown") for name in spec.models)
            self.on_identified(member, Identity(cards), None)
        self.on_good(member)

    async def _is_asleep(self, member: Member) -> bool:
        """One that knows no sleep is asked again when it came back."""
        if not member.may_sleep:
            return False
        found = await is_asleep(self.session, member.replica.spec, self.pace.probe_timeout_s)
        member.may_sleep = found is not None
        return found is True

    async def _learn(self, member: Member) -> None:
        is_due = self.clock() - member.identified_at >= self.pace.models_interval_s
        if not member.must_identify and (is_due or member.must_relist):
            await self._relist(member)
        if member.must_identify:
            await self._identify(member)

    async def _identify(self, member: Member) -> None:
        spec = member.replica.spec
        identity, document = await identify(self.session, spec, self.pace.identify_timeout_s)
        page = await self._find_page(member)
        if page is not None:
            block_size = identity.block_size or parse_block_size(page)
            num_blocks, engine = parse_num_blocks(page), parse_engine(page)
            identity = replace(identity, block_size=block_size, num_blocks=num_blocks, engine=engine)
        if spec.role is not None and spec.url.startswith("grpc") and identity.engine == "vllm":
            log.warning("%s does both halves of the work: vLLM hands out no KV over gRPC", spec.id)
        self.on_identified(member, identity, document)

    async def _relist(self, member: Member) -> None:
        """Now and then: adapters may have been loaded, and some engines show no load before their first request."""
        was_told, member.must_relist = member.must_relist, False
        try:
            cards = await list_models(self.session, member.replica.spec, self.pace.identify_timeout_s)
        except UpstreamError:  # it is well, the list can wait
            member.must_relist |= was_told
        else:
            if member.relist(cards, self.clock()):
                self.on_relisted(member)
        if member.metrics_path is None:
            await self._find_page(member)

    async def _find_page(self, member: Member) -> bytes | None:
        found = await find_page(self.session, member.replica.spec, self.pace.probe_timeout_s)
        member.metrics_path = None if found is None else found[0]
        return None if found is None else found[1]

    async def _poll(self, member: Member, path: str) -> None:
        num_asked, asked_at = self._num_ours(member), self.clock()
        page = await read_page(self.session, member.replica.spec, path, self.pace.probe_timeout_s)
        load = parse_load(page, self.clock()) if page is not None else None
        if page is None or load is None:
            return
        member.take_in_slots(parse_slots(page, asked_at))
        # What came or went while we asked may or may not be in the report: count it as ours, not as foreign.
        is_lighter = member.report(load, max(num_asked, self._num_ours(member)))
        self.on_report(member)
        if is_lighter:
            self.on_lighter()

    def _num_ours(self, member: Member) -> int:
        """Requests that this host's workers have there."""
        self.before_report()
        return member.replica.in_flight + member.replica.sibling_in_flight
