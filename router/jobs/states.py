"""A job's life, and what is told of it. Knows states and times; knows nothing of Redis or of requests."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class JobState(StrEnum):
    """What moves a job is in `lua/`; this is the table of what may follow what."""

    QUEUED = "queued"
    WAITING = "waiting"  # to be tried again later
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.EXPIRED, JobState.CANCELLED}),
    JobState.WAITING: frozenset({JobState.QUEUED, JobState.EXPIRED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(
        {JobState.SUCCEEDED, JobState.FAILED, JobState.WAITING, JobState.QUEUED, JobState.CANCELLED, JobState.EXPIRED}
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.EXPIRED: frozenset(),
    JobState.CANCELLED: frozenset(),
}
ENDED = frozenset(state for state, following in NEXT.items() if not following)


def json_or_text(body: bytes) -> object:
    """A body as part of JSON: its very bytes where they are JSON, else what they say."""
    try:
        return msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


class Hook(msgspec.Struct, frozen=True):
    """Where the end of a job is told. `is_thin`: the id and state alone, without the answer."""

    url: str
    is_thin: bool = False
    is_cloud_event: bool = False


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is submitted. Times in seconds; lower `priority` goes first; `batch` is the batch that it is a line of, and
    `name` what its client calls it there."""

    id: str
    owner: str
    surface: str
    body: bytes
    priority: int = 1
    queue_timeout_s: float = 600.0
    most_tries: int = 3
    delay_s: float = 1.0
    most_delay_s: float = 5.0
    hook: Hook | None = None
    batch: str = ""
    keep_s: float = 24 * 3600.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that this process holds: it alone may end it, as long as `fence` is the job's."""

    id: str
    fence: int
    owner: str
    surface: str
    body: bytes
    left_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands. `status` is the answer's, 0 where there is none; `result` its JSON; times since 1970."""

    id: str
    owner: str
    surface: str
    state: JobState
    created: float
    changed: float
    tries: int = 0
    status: int = 0
    result: bytes = b""
    fault: str = ""
    hook: Hook | None = None
    hook_state: str = ""
    hook_fault: str = ""
    name: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def told(self) -> dict[str, Any]:
        """As clients see it."""
        answer = {"status_code": self.status, "body": json_or_text(self.result)} if self.result else None
        errors = [{"code": self.state, "message": self.fault}] if self.fault and self.state != "succeeded" else []
        return {
            "id": self.id,
            "object": "async_request",
            "endpoint": self.surface,
            "status": self.state,
            "created_at": self.created,
            "status_at": self.changed,
            "attempts": self.tries + (1 if self.has_ended or self.state is JobState.RUNNING else 0),
            "response": answer,
            "errors": errors,
            "webhook_status": self.hook_state or ("pending" if self.hook else "none"),
        }
