"""`python -m engine`: one engine as a process. Exit code 1 and one sentence when it cannot start.

Knows flags, signals and exit codes. Must not know how anything is built (app).
"""

import logging
import os
import signal
import sys
import time
from threading import Thread
from types import FrameType
from typing import NoReturn

import uvloop

from engine.config import EngineConfig, parse


def main() -> int:
    config = parse(sys.argv[1:])
    # Until the event loop takes the signals. Explicit for SIGINT too: a shell's background job starts with it ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_on_signal)
    if config.exit_with_parent:
        Thread(target=_stop_at_end_of_input, name="parent-watch", daemon=True).start()
    logging.basicConfig(level=config.log_level.upper(), format="pointsman engine: %(message)s")
    return _run(config)


def _run(config: EngineConfig) -> int:
    # Imported here because torch takes seconds: wrong flags and the parent's death are noticed before.
    from engine import app
    from engine.adapters import AdapterError
    from engine.fetch import FetchError
    from engine.model.fields import ModelError
    from engine.model.placement import PlacementError

    try:
        listener = app.listen(config.host, config.port)
        parts = app.build(config)
    except (app.StartError, AdapterError, ModelError, FetchError, PlacementError, MemoryError, OSError) as error:
        print(f"pointsman engine: {error}", file=sys.stderr)
        return 1
    try:
        uvloop.run(app.serve(parts, listener))
    except app.StartError as error:
        print(f"pointsman engine: {error}", file=sys.stderr)
        return 1
    # All is closed by now. Taking torch apart would cost a second, and crash on a step that is still computing.
    logging.shutdown()
    os._exit(0)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _stop_at_end_of_input() -> None:
    """Whoever started us holds the other end of standard input, and says nothing on it, as long as it lives."""
    # Not sys.stdin: its lock, held by a daemon thread, would crash the interpreter's exit.
    while os.read(0, 4096):
        pass
    # Again and again: while torch is imported, one exit may be swallowed.
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


if __name__ == "__main__":
    raise SystemExit(main())
