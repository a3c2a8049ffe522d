"""What clients say when they ask for a job: the request itself, how long it may wait, how often it is tried, where
its end is told. Knows the fields of the body and of headers; knows nothing of Redis."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from router.core import Surface
from router.errors import InvalidRequest
from router.jobs.addresses import Reach
from router.jobs.states import Hook, NewJob
from router.openai import invalid_field, peek

# Fields of ours, which no engine is sent.
OURS = (
    "webhook_endpoint",
    "webhook_payload",
    "webhook_format",
    "max_time_in_queue_seconds",
    "inference_retry_config",
    "priority",
)
MAX_BODY_BYTES = 8 * 2**20

Priority = Annotated[int, msgspec.Meta(ge=0, le=100)]


class Retries(msgspec.Struct):
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    initial_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 1000
    max_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] = 5000


class Options(msgspec.Struct):
    webhook_endpoint: str | None = None
    webhook_payload: str = "full"
    webhook_format: str = "standard"
    max_time_in_queue_seconds: Annotated[float, msgspec.Meta(ge=1, le=259_200)] = 600.0
    inference_retry_config: Retries = msgspec.field(default_factory=Retries)
    priority: Priority = 1


def new_job(surface: Surface, body: bytes, owner: str, reach: Reach, keep_s: float) -> tuple[NewJob, str]:
    """The job, and the model that it asks for. Raises InvalidRequest that names the field."""
    if len(body) > MAX_BODY_BYTES:
        raise InvalidRequest(f"The body of a job has at most {MAX_BODY_BYTES} bytes.", param="body")
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        options = msgspec.convert(
            {name: msgspec.json.decode(fields.pop(name)) for name in OURS if name in fields}, Options
        )
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    asked = msgspec.json.encode(fields)
    peeked = peek(asked, surface)
    if peeked.stream:
        raise InvalidRequest("`stream` has no use where nobody waits.", param="stream")
    return _job(surface, asked, owner, options, _hook(options, reach), keep_s), peeked.model


def _job(surface: Surface, body: bytes, owner: str, options: Options, hook: Hook | None, keep_s: float) -> NewJob:
    retries = options.inference_retry_config
    return NewJob(
        id=f"async_{secrets.token_hex(12)}",
        owner=owner,
        surface=surface,
        body=body,
        priority=options.priority,
        queue_timeout_s=options.max_time_in_queue_seconds,
        most_tries=retries.max_attempts,
        delay_s=retries.initial_delay_ms / 1e3,
        most_delay_s=max(retries.max_delay_ms, retries.initial_delay_ms) / 1e3,
        hook=hook,
        keep_s=keep_s,
    )


def _hook(options: Options, reach: Reach) -> Hook | None:
    for name, allowed in (("webhook_payload", ("full", "thin")), ("webhook_format", ("standard", "cloudevents"))):
        if getattr(options, name) not in allowed:
            raise InvalidRequest(f"`{name}` must be {' or '.join(allowed)}.", param=name)
    if options.webhook_endpoint is None:
        return None
    reach.check_url(options.webhook_endpoint)
    return Hook(
        options.webhook_endpoint,
        is_thin=options.webhook_payload == "thin",
        is_cloud_event=options.webhook_format == "cloudevents",
    )


def same_key(owner: str, headers: Mapping[str, str]) -> str:
    """The key of idempotency, which is its owner's alone; empty where there is none. Raises InvalidRequest."""
    key: Any = headers.get("idempotency-key", "")
    if len(key) > 255:
        raise InvalidRequest("The header `Idempotency-Key` has at most 255 characters.", param="Idempotency-Key")
    return f"{owner}:{key}" if key else ""
