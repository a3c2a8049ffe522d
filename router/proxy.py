"""The data path: one request, its steps, one screen. Every transport hands its requests to `Proxy.handle`.

Knows the order of steps and what a failure means for the next try; knows nothing of sockets, tokens or scores.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from router import headers
from router.admission.bands import TIERS
from router.admission.gate import Gate
from router.admission.passes import Pass
from router.core import Attempt, Demand, Lease, Outcome, Pool, Prompt, Request, Surface
from router.errand import Errand, own_task
from router.errors import ContextTooLong, Displaced, Draining, NoReplica, Overloaded, PointsmanError, UnknownModel
from router.naming import Names, renamed
from router.openai import with_usage, without_field
from router.ports import Clock, Placer, PromptReader, Queue, Reply, Upstream
from router.relay import Phase, Relay, RelayTimes
from router.retelling import Retelling
from router.retries import RetryBudget
from router.telemetry.journal import Journal

# A shorter wait for a place is none that a client need hear of.
_WORTH_TELLING_S = 0.005

Find = Callable[[str], tuple[Pool, str | None] | None]
Known = Callable[[str, float], Awaitable[tuple[Pool, str | None]]]
_TELL_USAGE = (Surface.CHAT, Surface.COMPLETIONS)
# Requests that look at the clock before others have the loop again.
_TICKED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """How often and how long one request tries. Seconds, except `max_attempts`."""

    max_attempts: int = 3
    retry_jitter_s: float = 0.02
    connect_timeout_s: float = 3.0
    first_byte_timeout_s: float = 300.0
    idle_timeout_s: float = 60.0
    forward_credentials: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class Proxy:
    """Carries requests. `find` gives a model's pool and adapter, or None; `known` waits for it while some replica has
    not yet said what it serves; `is_there`: has a pool a replica worth waiting for? What can be done at once is: most
    requests wait only for the end of their answer."""

    gate: Gate
    find: Find
    known: Known
    prompts: PromptReader
    queue: Queue
    placer: Placer
    upstream: Upstream
    clock: Clock
    limits: ProxyLimits
    times: RelayTimes
    budget: RetryBudget
    journal: Journal
    open_relays: set[Relay]
    names: Names = field(default_factory=Names)
    is_there: Callable[[Pool], bool] = lambda _: True

    def begin(self, request: Request, reply: Reply) -> Errand:
        """Serve one request: here as far as that goes without waiting, then on its own."""
        relay = Relay(request, reply, self.clock, self.times)
        errand = relay.errand = Errand(self._serve(request, relay))
        return errand.step()

    async def handle(self, request: Request, reply: Reply) -> None:
        """Serve one request to its end. Raises only CancelledError."""
        await self.begin(request, reply).wait()

    async def tick(self, now: float) -> None:
        """Let every open request look at the clock. Thousands of them are no reason to stop the loop for long, and the
        fault of one is no other's."""
        for number, relay in enumerate(list(self.open_relays), 1):
            try:
                relay.tick(now)
            except Exception:
                self.journal.broke(relay.request)
                relay.cancel()
            if number % _TICKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _serve(self, request: Request, relay: Relay) -> None:
        self.open_relays.add(relay)
        outcome = Outcome.REJECTED
        try:
            passed = self.gate.enter(request)
            try:
                if passed.accounts:
                    await passed.enter()
                self.budget.earn()
                if self.names:
                    await self._answer_as_named(request, relay, passed)
                else:
                    await self._answer(request, relay, passed)
            finally:
                self.gate.leave(passed, relay.usage if passed.accounts else None)
            outcome = Outcome.OK
        except PointsmanError as error:
            outcome = relay.outcome_of(error)
            relay.fail(error)
        except asyncio.CancelledError:
            outcome = Outcome.CLIENT_GONE if relay.is_client_gone else Outcome.REJECTED
            relay.fail(Draining("The router is stopping.", retry_after_s=1.0))
            raise
        except Exception:
            self.journal.broke(request)
            relay.fail(PointsmanError("The router failed to serve this request."))
        finally:
            self.open_relays.discard(relay)
            self.journal.ended(request, relay.lease, relay.status, relay.usage, outcome, relay.num_events)

    async def _answer_as_named(self, request: Request, relay: Relay, passed: Pass) -> None:
        """By an alias, or a stand-in where the model that it asks for cannot be served."""
        asked = self.names.named(request)
        models = self._worth_asking([asked.model, *self.names.stand_ins(asked.model)])
        for model in models[:-1]:
            try:
                await self._answer(renamed(asked, model), relay, passed)
            except PointsmanError as error:
                if not _may_be_stood_in_for(error, relay):
                    raise
                self.journal.retried(error)
            else:
                return
        await self._answer(renamed(asked, models[-1]), relay, passed)

    def _worth_asking(self, models: Sequence[str]) -> Sequence[str]:
        """Without those that are known and away, as long as another one is there: nobody knows when they come back."""
        found = [(model, self.find(model)) for model in models]
        there = [(model, known) for model, known in found if known is None or self.is_there(known[0])]
        return [model for model, _ in there] if any(known is not None for _, known in there) else models

    async def _answer(self, request: Request, relay: Relay, passed: Pass) -> None:
        pool, adapter = self.find(request.model) or await self._known(request)
        prompt = await self.prompts.read(request, pool, adapter)
        _check_length(request, prompt, pool)
        if passed.accounts and not passed.num_charged:
            await passed.charge(request, prompt.num_tokens)
            relay.notes = passed.headers()
        hides_usage = False
        if passed.accounts and request.is_stream and not request.tells_usage and request.surface in _TELL_USAGE:
            # What counts against a limit is asked for, and not shown to who did not ask.
            request, hides_usage = msgspec.structs.replace(request, body=with_usage(request.body)), True
        if hides_usage or request.names_tier:
            relay.retelling = Retelling(hides_usage, TIERS[passed.standing.band] if request.names_tier else None)
        demand = Demand(request, pool, prompt, adapter, standing=passed.standing)
        relay.queue = self.queue
        while True:
            relay.demand = demand
            lease = await self.queue.place(demand)
            if (waited_s := lease.taken_at - request.arrived) > _WORTH_TELLING_S:
                relay.notes = (*passed.headers(), ("x-pointsman-queue-ms", f"{waited_s * 1e3:.0f}"))
            self.journal.placed(lease)
            error = await self._attempt(lease, relay)
            if error is None:
                return
            demand = await self._next(demand, lease, relay, error)

    async def _known(self, request: Request) -> tuple[Pool, str | None]:
        await own_task()
        return await self.known(request.model, request.deadline)

    async def _attempt(self, lease: Lease, relay: Relay) -> PointsmanError | None:
        """Carry the answer of one replica. The lease ends with the body, not with the head: the replica is busy."""
        try:
            await relay.carry(self.upstream, self._wire(lease), lease)
        except PointsmanError as error:
            lease.release(relay.outcome_of(error), error)
            return error
        except BaseException as error:
            lease.abandon(error)
            raise
        else:
            lease.release(Outcome.OK)
            return None
        finally:
            self.journal.attempted(lease)

    async def _next(self, demand: Demand, lease: Lease, relay: Relay, error: PointsmanError) -> Demand:
        """The demand for another try without this replica. Raises the error where there is none to be had."""
        is_unanswered = relay.phase in (Phase.SILENT, Phase.HELD)
        if isinstance(error, Displaced) and is_unanswered:
            return msgspec.structs.replace(demand, num_displaced=demand.num_displaced + 1)
        again = msgspec.structs.replace(demand, tried=demand.tried | {lease.replica.id})
        may_retry = error.retryable and is_unanswered
        if not may_retry or len(again.tried) >= self.limits.max_attempts or not self.placer.has_ready(again):
            raise error
        if not self.budget.spend():
            raise error
        self.journal.retried(error)
        await asyncio.sleep(random.random() * self.limits.retry_jitter_s)
        return again

    def _wire(self, lease: Lease) -> Attempt:
        request, limits = lease.demand.request, self.limits
        spec = lease.replica.spec
        return Attempt(
            replica=lease.replica,
            path=request.surface,
            request_id=request.id,
            headers=headers.to_replica(request.headers, spec.api_key, forwards_credentials=limits.forward_credentials),
            # Our queue's field: engines without priority scheduling refuse it.
            body=without_field(request.body, "priority") if request.priority else request.body,
            connect_timeout_s=limits.connect_timeout_s,
            first_byte_timeout_s=limits.first_byte_timeout_s,
            idle_timeout_s=limits.idle_timeout_s,
            deadline=request.deadline,
        )


def _may_be_stood_in_for(error: PointsmanError, relay: Relay) -> bool:
    """Another model can help where this one is unknown, away, overloaded or failing, and the client has seen none."""
    is_helpless = isinstance(error, UnknownModel | NoReplica | Overloaded) or error.retryable
    return is_helpless and relay.phase in (Phase.SILENT, Phase.HELD)


def _check_length(request: Request, prompt: Prompt, pool: Pool) -> None:
    """Refuse what no replica of the pool can hold. Guessed lengths refuse nothing: the engine knows."""
    limit = pool.max_model_len
    if limit is not None and prompt.is_exact and prompt.num_tokens >= limit:
        name = "prompt" if request.messages is None else "messages"
        raise ContextTooLong(
            f"The prompt has {prompt.num_tokens} tokens; the context of `{request.model}` holds {limit}.", param=name
        )
