"""A data path over replicas with roles, in memory, where pairs pay."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from router.core import Lease, Surface, Usage
from router.handover import Handovers
from router.routing.moving import Moving
from router.routing.splitting import Splitting
from router.spec import ReplicaSpec
from router.upstream.handover import HandoverUpstream
from router.upstream.handshakes import can_split
from tests.fakes import FakeExchange, FakeReply, FakeUpstream, Station, turns, until
from tests.router.nouns import make_request

EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
DONE = b"data: [DONE]\n\n"
PARAMS = {"do_remote_prefill": True, "remote_host": "p", "remote_port": 5600, "remote_block_ids": [1]}
NUM_TOKENS = 2001
USAGE = {"prompt_tokens": NUM_TOKENS, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
BODY = b'{"model":"m","prompt":"Hello","stream":true,"max_tokens":9}'
FIRST = json.dumps({"choices": [{"text": "a"}], "usage": USAGE, "kv_transfer_params": PARAMS}).encode()


@dataclass(eq=False)
class Halves:
    """A station over `p` and `d`, which is made to prefer the pair, and what its clients were told."""

    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    tasks: "list[asyncio.Task[None]]" = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)

    def open(self, engine: str = "vllm", names: str = "pd", retries: float = 10.0) -> Station:
        specs = [
            ReplicaSpec(f"http://{name}", api_key=f"key-of-{name}", role="prefill" if name in "pq" else "decode")
            for name in names
        ]
        self.station = station = Station(self.upstream, specs, retries=retries)
        for member in station.registry.members():
            member.replica.engine = engine
            if member.replica.spec.role == "decode":
                member.replica.foreign_requests, member.replica.context_tokens = 5, 50_000
        station.prompts.num_tokens = NUM_TOKENS
        placement, budget = station.placement, station.budget
        self.moving = Moving(1e-7)
        self.splitting = Splitting(placement.policy, can_split, self.moving, max_in_flight=8)
        self.handovers = Handovers(
            reserve=placement.reserve,
            index=placement.index,
            budget=budget,
            clock=station.clock,
            moving=self.moving,
            pause=self.splitting.pause,
            metrics=station.metrics,
            failed=lambda lease, _: self.told.append(("failed", lease.replica.id)),
            answered=self._answered,
        )
        placement.policy, placement.reserve = self.splitting, self.handovers.take
        station.proxy.upstream = HandoverUpstream(self.upstream, self.handovers.plan_of)
        return station

    def ask(self, **fields: Any) -> FakeReply:
        reply, now = FakeReply(), self.station.clock()
        values = {"body": BODY, "surface": Surface.COMPLETIONS, "is_stream": True, "arrived": now, **fields}
        request = make_request(**values, deadline=now + 600.0)
        self.tasks.append(asyncio.ensure_future(self.station.proxy.handle(request, reply)))
        return reply

    async def exchange(self, number: int) -> FakeExchange:
        await until(lambda: len(self.upstream.exchanges) > number)
        return self.upstream.exchanges[number]

    async def ended(self, reply: FakeReply) -> FakeReply:
        await until(lambda: reply.outcome is not None)
        await turns()
        return reply

    @property
    def counts(self) -> dict[tuple[str, ...], int]:
        return self.station.metrics.handovers.counts

    def _answered(self, lease: Lease, usage: Usage, _: float) -> None:
        assert usage.prompt_tokens == NUM_TOKENS
        self.told.append(("answered", lease.replica.id))


def sent(exchange: FakeExchange) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(exchange.attempt.body)
    return found
