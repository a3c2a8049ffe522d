"""Requests as a trace that can be replayed: when each came, how long it was, which blocks it had; never what it said.

Knows a file and its limit; knows nothing of texts, tenants or replicas. A line is a JSON object: `at_s` (seconds of
Unix time), `prompt_tokens`, `output_tokens`, `block_size` and `block_hashes`, one for each full block. Several
processes may append to one file: each writes whole lines at its end.
"""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from enum import Enum

import msgspec

from router.config import ConfigError, Settings
from router.core import Lease, Prompt, Usage

# What a disk that stands still may pile up: beyond it, rows are lost and counted.
MAX_PENDING = 20_000
# Only the owner may read it: who can guess a prompt can tell from its hashes that it was sent.
_MODE = 0o600


class State(Enum):
    """RECORDING -> FULL or BROKEN, for good."""

    RECORDING = "recording"
    FULL = "the file has reached its limit"
    BROKEN = "the file cannot be written"


class Recording:
    """`note` is for the hot path; `flush`, about once a second, writes in a thread, until the file has `max_bytes`."""

    def __init__(self, path: str, max_bytes: int, logger: logging.Logger) -> None:
        """Raises OSError where the file cannot be opened."""
        self.state = State.RECORDING
        self.num_lost = 0
        self._path, self._max_bytes, self._logger = path, max_bytes, logger
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        self._started_at = time.time() - time.monotonic()
        self._pending: list[tuple[float, Prompt, int]] = []

    def note(self, lease: Lease, usage: Usage, num_events: int) -> None:
        """A request that had a place has ended. Where its replica counted no tokens, the events of a stream stand for
        them."""
        if self.state is not State.RECORDING:
            return
        if len(self._pending) >= MAX_PENDING:
            self.num_lost += 1
            return
        num_tokens = num_events if usage.output_tokens is None else usage.output_tokens
        self._pending.append((lease.demand.request.arrived, lease.demand.prompt, num_tokens))

    async def flush(self) -> None:
        pending, self._pending = self._pending, []
        if not pending or self.state is not State.RECORDING:
            return
        try:
            await asyncio.to_thread(self._append, pending)
        except OSError as error:
            self._stop(State.BROKEN, error.strerror or str(error))
        if self.num_lost:
            self._warn("requests were not recorded: the disk is too slow", num_lost=self.num_lost)
            self.num_lost = 0

    async def close(self) -> None:
        await self.flush()
        os.close(self._file)

    def _append(self, pending: Sequence[tuple[float, Prompt, int]]) -> None:
        """In a thread. As many whole lines as the file may still take."""
        room = self._max_bytes - os.fstat(self._file).st_size
        lines = []
        for arrived, prompt, num_output_tokens in pending:
            line = _line(round(self._started_at + arrived, 6), prompt, num_output_tokens)
            room -= len(line)
            if room < 0:
                self._stop(State.FULL, f"{self._max_bytes} bytes")
                break
            lines.append(line)
        data = memoryview(b"".join(lines))
        while data:
            data = data[os.write(self._file, data) :]

    def _stop(self, state: State, why: str) -> None:
        self.state = state
        self._warn(f"recording has ended: {state.value}", reason=why)

    def _warn(self, message: str, **fields: object) -> None:
        self._logger.warning(message, extra={"fields": {"record": self._path, **fields}})

    def __repr__(self) -> str:
        return f"<Recording {self._path} {self.state.name} {len(self._pending)} pending>"


def open_recording(settings: Settings, logger: logging.Logger) -> Recording | None:
    """None where nothing is to be recorded. Raises ConfigError."""
    if not settings.record:
        return None
    try:
        return Recording(settings.record, settings.record_max_bytes, logger)
    except OSError as error:
        raise ConfigError(f"The file of the setting `record` cannot be written: {error.strerror}.") from None


def _line(at_s: float, prompt: Prompt, num_output_tokens: int) -> bytes:
    row = {
        "at_s": at_s,
        "prompt_tokens": prompt.num_tokens,
        "output_tokens": num_output_tokens,
        "block_size": prompt.block_size,
        "block_hashes": list(prompt.block_hashes),
    }
    return msgspec.json.encode(row) + b"\n"
