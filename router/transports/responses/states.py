"""A response's life, what is kept of it, and what goes wrong with that. Knows OpenAI's words; knows nothing of Redis,
of sockets or of who runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from router.errors import BodyTooLarge, InvalidRequest, PointsmanError

# A conversation that is longer is answered, and not stored: Redis has little time for each.
MAX_RECORD_BYTES = 4 * 2**20


class ResponseState(StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset(
    {ResponseState.COMPLETED, ResponseState.INCOMPLETE, ResponseState.FAILED, ResponseState.CANCELLED},
)
NEXT: Mapping[ResponseState, frozenset[ResponseState]] = {
    # Whoever ran it may be gone: then it waits again.
    ResponseState.QUEUED: _ENDS | {ResponseState.IN_PROGRESS},
    ResponseState.IN_PROGRESS: _ENDS | {ResponseState.QUEUED},
    **{state: frozenset() for state in _ENDS},
}
ENDED = frozenset(state for state, following in NEXT.items() if not following)
# Those that others may follow: a conversation goes on from them.
SAID = frozenset({ResponseState.COMPLETED, ResponseState.INCOMPLETE})


class Kept(msgspec.Struct):
    """A stored response: itself, what was put in, and the conversation up to its end in chat's form."""

    response: dict[str, Any]
    input: list[Any]
    messages: list[Any]


class Work(msgspec.Struct):
    """What another process needs to run a response again: the request's body, and its class."""

    body: str
    band: int


@dataclass(frozen=True, slots=True)
class Told:
    """Some of a response's events, each with its number. `is_live`: there may come more."""

    events: Sequence[tuple[int, bytes]]
    is_live: bool


@dataclass(frozen=True, slots=True)
class Orphan:
    """A response whose process is gone, and which is ours now. `num_said` events were told of it; `num_deaths` of
    processes has it seen."""

    id: str
    fence: int
    owner: str
    record: bytes
    work: bytes
    num_deaths: int
    num_said: int
    is_cancelled: bool


class UnknownResponse(InvalidRequest):
    status = 404
    code = "response_not_found"

    def __init__(self, id: str) -> None:
        super().__init__(f"There is no response `{id}`.", param="response_id")


class UnknownPrevious(InvalidRequest):
    code = "previous_response_not_found"

    def __init__(self, id: str) -> None:
        super().__init__(f"There is no response `{id}` to follow.", param="previous_response_id")


class EventsGone(InvalidRequest):
    """It was not streamed, or its events are no longer kept."""

    code = "response_events_gone"


class TooLongToStore(BodyTooLarge):
    """What goes on without its client must be stored first."""

    code = "response_too_long"

    def __init__(self) -> None:
        message = f"The conversation has more than {MAX_RECORD_BYTES} bytes, and cannot run in the background."
        super().__init__(message, param="input")


class ResponsesAway(PointsmanError):
    """Responses are kept in Redis, and it is not there."""

    status = 503
    type = "service_unavailable"
    code = "responses_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Stored responses cannot be reached now: {reason}.", retry_after_s=1.0)
