"""The lines of a batch's file, and of its results. Knows OpenAI's line formats; knows nothing of Redis or of who runs
them."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from router.core import Surface
from router.errors import InvalidRequest
from router.jobs.states import Job, JobState, json_or_text

MAX_LINES = 50_000
MAX_LINE_BYTES = 8 * 2**20
# A file may be wrong in every line: so many are told.
MAX_ERRORS = 100
ENDPOINTS = tuple(surface.value for surface in Surface)


class Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None


_LINE = msgspec.json.Decoder(Line)
_BODY = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one line; `line` counts from 1."""

    line: int
    code: str
    message: str
    param: str | None = None

    def told(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of a file from some offset on. `offset` and `line` are where the next piece begins."""

    lines: list[tuple[int, Line]]
    offset: int
    line: int
    is_last: bool


def validate(path: Path, endpoint: str) -> tuple[int, list[Fault]]:
    """Number of lines, and what is wrong with them. Reads the whole file: not for the event loop."""
    seen: set[str] = set()
    faults: list[Fault] = []
    num_lines = 0
    for number, raw in _numbered(path):
        num_lines += 1
        if num_lines > MAX_LINES:
            faults.append(Fault(number, "too_many_lines", f"A batch has at most {MAX_LINES} lines."))
            break
        fault = _fault(number, raw, endpoint, seen)
        if fault is not None:
            faults.append(fault)
        if len(faults) >= MAX_ERRORS:
            break
    if not num_lines and not faults:
        faults.append(Fault(0, "empty_file", "The file has no lines."))
    return num_lines, faults


def read(path: Path, offset: int, line: int, most: int) -> Piece:
    """Up to so many lines of a file that is valid. Not for the event loop."""
    found: list[tuple[int, Line]] = []
    with path.open("rb") as file:
        file.seek(offset)
        while len(found) < most and (raw := file.readline()):
            line += 1
            if raw.strip():
                found.append((line, _LINE.decode(raw)))
        offset = file.tell()
        return Piece(found, offset, line, is_last=not file.read(1))


def result_line(job: Job) -> tuple[bool, bytes]:
    """Does it go to the output, and the line. What was not answered goes to the errors, with its reason."""
    response = None
    if job.status:
        response = {"status_code": job.status, "request_id": job.id, "body": json_or_text(job.result)}
    is_output = job.state is JobState.SUCCEEDED
    error = None if is_output else {"code": _CODES.get(job.state, "request_failed"), "message": job.fault}
    return is_output, _encoded(job.name, response, error)


def unserved_line(line: Line, code: str, message: str) -> bytes:
    """Of a line that was never run."""
    return _encoded(line.custom_id, None, {"code": code, "message": message})


_CODES = {JobState.EXPIRED: "batch_expired", JobState.CANCELLED: "batch_cancelled"}


def _encoded(custom_id: str, response: object, error: object) -> bytes:
    told = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(told) + b"\n"


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            while len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES)
                if not rest or rest.endswith(b"\n"):
                    break
            if raw.strip():
                yield number, raw


def _fault(number: int, raw: bytes, endpoint: str, seen: set[str]) -> Fault | None:
    if len(raw) > MAX_LINE_BYTES:
        return Fault(number, "line_too_long", f"A line has at most {MAX_LINE_BYTES} bytes.")
    try:
        line = _LINE.decode(raw)
        body = _BODY.decode(line.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Fault(number, "invalid_json_line", f"The line is wrong: {error}.")
    if line.custom_id in seen:
        return Fault(number, "duplicate_custom_id", f"`{line.custom_id}` is there twice.", "custom_id")
    seen.add(line.custom_id)
    if line.method != "POST":
        return Fault(number, "invalid_method", "`method` must be POST.", "method")
    if line.url != endpoint:
        return Fault(number, "mismatched_url", f"`url` must be the batch's endpoint, {endpoint}.", "url")
    if body.stream:
        return Fault(number, "invalid_request", "`stream` has no use in a batch.", "body.stream")
    return None


def checked_surface(endpoint: object) -> str:
    """Raises InvalidRequest."""
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(f"`endpoint` must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
    return str(endpoint)
