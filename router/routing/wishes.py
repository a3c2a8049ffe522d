"""What a client says that a decision goes by: its session, and the latency that it hopes for. Knows names of headers
and of fields; knows no replica. Credentials are no session: one shared key would lead everybody to one replica."""

from router.core import Headers, Slo
from router.errors import InvalidRequest

# Ours, then those of other routers (AIBrix, Dynamo, SMG, llm-d, production-stack). The first that is there counts.
SESSION_HEADERS = (
    "x-session-id",
    "x-pointsman-session",
    "x-aibrix-session-key",
    "x-dynamo-session-id",
    "x-smg-routing-key",
    "x-session-token",
    "x-user-id",
)
# llm-d's name, then the older one that others use as well. The new name wins.
TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
MAX_SESSION_CHARS = 256


def session_of(headers: Headers, *fields: object) -> str | None:
    """The session by a header, else by the first of the body's `fields` that is a text: `prompt_cache_key`,
    `previous_response_id`, `user`, `safety_identifier`. None where nothing says it."""
    return session_header(headers) or first_text(*fields)


def session_header(headers: Headers) -> str | None:
    _, value = _first(headers, SESSION_HEADERS)
    return value[:MAX_SESSION_CHARS] if value else None


def first_text(*fields: object) -> str | None:
    for each in fields:
        if each and isinstance(each, str):
            return each[:MAX_SESSION_CHARS]
    return None


def slo_of(headers: Headers) -> Slo | None:
    """None where no header says it. Raises InvalidRequest that names the header."""
    ttft_s, tpot_s = _seconds(headers, TTFT_HEADERS), _seconds(headers, TPOT_HEADERS)
    return None if ttft_s is None and tpot_s is None else Slo(ttft_s, tpot_s)


def _seconds(headers: Headers, names: tuple[str, ...]) -> float | None:
    name, value = _first(headers, names)
    if value is None:
        return None
    try:
        seconds = float(value) / 1e3
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise InvalidRequest(
            f"The header `{name}` must be a number of milliseconds above 0, not {value!r}.", param=name
        )
    return seconds


def _first(headers: Headers, names: tuple[str, ...]) -> tuple[str | None, str | None]:
    given = dict(headers)
    return next(((name, given[name]) for name in names if name in given), (None, None))
