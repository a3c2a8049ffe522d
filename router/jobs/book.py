"""All jobs, in Redis: what waits, who runs what, what came of it. Knows Redis' scripts and their arguments; knows
nothing of requests, files or HTTP. Every move is one script: there is no state between two.

A claim is a lease with a fence: who does not renew it loses it, and what they say afterwards is not heard. Raises
StoreAway where Redis is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from router.jobs.states import Claimed, Hook, Job, JobState, NewJob
from router.store import names
from router.store.connection import Script, Store

LEASE_S = 30.0
MOST_DEATHS = 3
# An idempotency key counts as long as a day: clients that try again do so within that.
SAME_S = 24 * 3600.0
# Until another sender may try a webhook that its sender is silent of.
HOOK_LEASE_S = 20.0
_FIELDS = "owner surface state created changed tries status fault hook hook_state hook_fault name".split()


class Held(msgspec.Struct, frozen=True):
    """What renewing a lease says of a job."""

    is_held: bool
    is_cancelled: bool


@dataclass(frozen=True, slots=True)
class DueHook:
    """A webhook that is to be sent now."""

    job: Job
    attempt: int


@dataclass(frozen=True, slots=True)
class JobBook:
    store: Store

    async def submit(self, jobs: Sequence[NewJob], same: str = "") -> str:
        """The id of the (first) job, which is an earlier one's where `same`, a key of idempotency, was used before."""
        words: list[Any] = [same, _ms(SAME_S), len(jobs)]
        for job in jobs:
            words += new_words(job)
        found = await self.run("submit", words)
        return found.decode() if isinstance(found, bytes) else jobs[0].id

    async def claim(self, most: int) -> list[Claimed]:
        rows = await self.run("claim", [most, _ms(LEASE_S)])
        return [
            Claimed(id.decode(), int(fence), owner.decode(), surface.decode(), body, int(left_ms) / 1e3)
            for id, fence, owner, surface, body, left_ms in rows
        ]

    async def renew(self, held: Sequence[Claimed]) -> list[Held]:
        found = await self.run("renew", [_ms(LEASE_S), *_fences(held)])
        return [Held(bool(code), code == 2) for code in found]

    async def give_back(self, held: Sequence[Claimed]) -> None:
        if held:
            await self.run("give_back", _fences(held))

    async def end(
        self,
        claimed: Claimed,
        state: JobState,
        status: int = 0,
        result: bytes = b"",
        fault: str = "",
        wait_s: float = 0.0,
    ) -> bool:
        """Was it ours to end? WAITING means that it is tried again, if it may be."""
        outcome = "again" if state is JobState.WAITING else state
        words = [claimed.id, claimed.fence, outcome, status, result, fault, _ms(wait_s)]
        return bool(await self.run("end", words))

    async def cancel(self, id: str, owner: str) -> JobState | None:
        """The state that it has then; None where the owner has no such job."""
        state = await self.run("cancel", [id, owner])
        return None if state is None else JobState(state.decode())

    async def get(self, id: str, owner: str) -> Job | None:
        job = await self.find(id)
        return job if job is not None and job.owner == owner else None

    async def find(self, id: str) -> Job | None:
        """Whoever's it is."""
        [job] = await self.read([id])
        return job

    async def read(self, ids: Sequence[str]) -> list[Job | None]:
        """As they stand; None for those that are not there."""
        rows = await self.run("read", [len(_FIELDS), *_FIELDS, *ids]) if ids else []
        found = [dict(zip(("result", *_FIELDS), row, strict=True)) for row in rows]
        return [None if row["owner"] is None else _job(id, row) for id, row in zip(ids, found, strict=True)]

    async def sweep(self, most: int = 200) -> tuple[int, int, int]:
        """How many jobs wait again, were taken back, expired."""
        waiting, lost, late = await self.run("sweep", [most, MOST_DEATHS])
        return int(waiting), int(lost), int(late)

    async def num_waiting(self) -> int:
        return int(await self.store.call("ZCARD", names.JOBS + "queue"))

    async def due_hooks(self, most: int) -> list[DueHook]:
        rows = await self.run("hooks", [most, _ms(HOOK_LEASE_S)])
        fields = ("result", "state", "status", "fault", "hook", "surface", "created", "changed")
        return [
            DueHook(_job(id.decode(), dict(zip(fields, row, strict=True))), int(attempt)) for id, attempt, *row in rows
        ]

    async def hooked(self, due: DueHook, outcome: str, wait_s: float = 0.0, fault: str = "") -> None:
        """`outcome` is delivered, again or dead."""
        await self.run("hooked", [due.job.id, due.attempt, outcome, _ms(wait_s), fault])

    async def dead_hooks(self, most: int = 100) -> list[Job]:
        """Webhooks that were given up, the latest first."""
        ids = await self.store.call("ZREVRANGE", names.JOBS + "dead", 0, most - 1)
        return [job for job in await self.read([id.decode() for id in ids]) if job is not None]

    async def replay(self, id: str, owner: str = "") -> bool:
        """Send a webhook anew. False where there is none that has been sent or given up."""
        return bool(await self.run("replay", [id, owner]))

    async def run(self, name: str, words: Sequence[Any]) -> Any:
        """What the script of that name gives."""
        return await self.store.run(_script(name), [names.JOBS], words)


def new_words(job: NewJob) -> list[Any]:
    """A new job as the scripts take it."""
    hook = b"" if job.hook is None else msgspec.json.encode(job.hook)
    waits = [_ms(job.queue_timeout_s), job.most_tries, _ms(job.delay_s), _ms(job.most_delay_s)]
    return [job.id, job.owner, job.surface, job.body, job.priority, *waits, hook, job.batch, _ms(job.keep_s), job.name]


@cache
def _script(name: str) -> Script:
    folder = Path(__file__).parent / "lua"
    return Script((folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text())


def _job(id: str, row: Mapping[str, bytes | None]) -> Job:
    def text(name: str) -> str:
        return (row.get(name) or b"").decode()

    hook = row.get("hook")
    return Job(
        id=id,
        owner=text("owner"),
        surface=text("surface"),
        state=JobState(text("state")),
        created=int(text("created") or 0) / 1e3,
        changed=int(text("changed") or 0) / 1e3,
        tries=int(text("tries") or 0),
        status=int(text("status") or 0),
        result=row.get("result") or b"",
        fault=text("fault"),
        hook=msgspec.json.decode(hook, type=Hook) if hook else None,
        hook_state=text("hook_state"),
        hook_fault=text("hook_fault"),
        name=text("name"),
    )


def _fences(held: Sequence[Claimed]) -> list[Any]:
    return [word for claimed in held for word in (claimed.id, claimed.fence)]


def _ms(seconds: float) -> int:
    return round(seconds * 1e3)
