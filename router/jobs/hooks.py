"""Sends webhooks: the end of each job is told at least once, with an id that stays the same. Knows Standard Webhooks'
rules and schedule, OpenAI's and CloudEvents' shapes; what is due is the book's matter.

2xx alone is delivered; redirects are not followed; 410 ends it; Retry-After is honoured. An answer is read only as far
as it is small.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from router.errors import InvalidRequest
from router.jobs.addresses import AddressRefused, CheckedResolver, Reach
from router.jobs.book import DueHook, JobBook
from router.jobs.secrets import SecretBook
from router.jobs.signing import Signer
from router.jobs.states import Job
from router.store.errors import StoreAway

MINUTE_S, HOUR_S = 60.0, 3600.0
# Between one attempt and the next, as the specification has it; after the last the webhook is given up.
SCHEDULE_S = (
    5.0,
    5 * MINUTE_S,
    30 * MINUTE_S,
    2 * HOUR_S,
    5 * HOUR_S,
    10 * HOUR_S,
    14 * HOUR_S,
    20 * HOUR_S,
    24 * HOUR_S,
)
JITTER = 0.2
ATTEMPT_TIMEOUT_S = 15.0
MAX_AT_ONCE = 64
MAX_ANSWER_BYTES = 8 * 1024
MAX_RETRY_AFTER_S = 24 * HOUR_S
IDLE_S = 0.5
_GONE = 410
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of one attempt; `status` is 0 where there was no answer."""

    status: int
    fault: str = ""
    retry_after_s: float = 0.0

    @property
    def is_delivered(self) -> bool:
        return 200 <= self.status < 300


@dataclass(eq=False, slots=True)
class HookSender:
    """`run` ends when it is cancelled; what it was sending then is tried again by another."""

    book: JobBook
    secrets: SecretBook
    reach: Reach
    wall: Callable[[], float] = time.time
    random: Callable[[], float] = random.random
    resolver: CheckedResolver | None = None
    num_sending: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """A job has ended here: its webhook need not wait for the next look."""
        self._news.set()

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(resolver=self.resolver or CheckedResolver(self.reach), limit_per_host=8)
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
            asyncio.TaskGroup() as group,
        ):
            while True:
                due: list[DueHook] = []
                if self.num_sending < MAX_AT_ONCE:
                    with contextlib.suppress(StoreAway):
                        due = await self.book.due_hooks(MAX_AT_ONCE - self.num_sending)
                for each in due:
                    self.num_sending += 1
                    group.create_task(self._send(session, each))
                if not due:
                    await self._wait()

    async def _wait(self) -> None:
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await self._news.wait()

    async def _send(self, session: aiohttp.ClientSession, due: DueHook) -> None:
        try:
            sent = await self._attempt(session, due.job)
            await self._settle(due, sent)
        except StoreAway as error:
            log.warning("the webhook of job %s will be sent again: %s", due.job.id, error)
        finally:
            self.num_sending -= 1
            self._news.set()

    async def _attempt(self, session: aiohttp.ClientSession, job: Job) -> Sent:
        hook = job.hook
        assert hook is not None  # it is due
        body, headers = self._message(job, await self.secrets.signer())
        try:
            self.reach.check_url(hook.url)  # what was allowed when it was submitted may be so no longer
            async with session.post(hook.url, data=body, headers=headers, allow_redirects=False) as response:
                await response.content.read(MAX_ANSWER_BYTES)
                wait = response.headers.get("retry-after", "")
                wait_s = min(float(wait), MAX_RETRY_AFTER_S) if wait.isdigit() else 0.0
                return Sent(response.status, f"It was answered with {response.status}.", wait_s)
        except AddressRefused as error:
            return Sent(_GONE, str(error))
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, AddressRefused)
            return Sent(_GONE if refused else 0, str(error.os_error if refused else error))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return Sent(0, f"{type(error).__name__}: {error}")
        except InvalidRequest as error:
            return Sent(_GONE, error.message)

    async def _settle(self, due: DueHook, sent: Sent) -> None:
        if sent.is_delivered:
            await self.book.hooked(due, "delivered")
        elif sent.status == _GONE or due.attempt > len(SCHEDULE_S):
            log.warning("the webhook of job %s is given up: %s", due.job.id, sent.fault)
            await self.book.hooked(due, "dead", 0.0, sent.fault)
        else:
            wait_s = SCHEDULE_S[due.attempt - 1] * (1.0 + JITTER * self.random())
            await self.book.hooked(due, "again", max(wait_s, sent.retry_after_s), sent.fault)

    def _message(self, job: Job, signer: Signer) -> tuple[bytes, dict[str, str]]:
        hook = job.hook
        assert hook is not None  # it is due
        event = event_of(job)
        body = msgspec.json.encode(event if not hook.is_cloud_event else event["data"])
        headers = {"content-type": "application/json", "user-agent": "pointsman-webhooks"}
        headers |= signer.headers(event["id"], int(self.wall()), body)
        if hook.is_cloud_event:
            headers |= {
                "ce-specversion": "1.0",
                "ce-id": event["id"],
                "ce-type": event["type"],
                "ce-source": "/pointsman/jobs",
            }
        return body, headers


def event_of(job: Job) -> dict[str, Any]:
    """OpenAI's event, whose types its SDK knows. A thin one has the id alone; whoever wants more asks for the job."""
    kind = {"succeeded": "completed", "expired": "failed"}.get(job.state, job.state)
    told = {"id": job.id} if job.hook is not None and job.hook.is_thin else job.told()
    return {
        "id": f"evt_{job.id}",
        "object": "event",
        "type": f"response.{kind}",
        "created_at": int(job.changed),
        "data": told,
    }
