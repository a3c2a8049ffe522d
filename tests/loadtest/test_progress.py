import asyncio
import io
import sys

import pytest

from loadtest.progress import Counts, show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("num_planned", "duration_s", "share"), [(40, None, "25%"), (None, 20.0, "40%")])
async def test_on_a_terminal_a_bar_follows_the_requests_or_the_time(
    monkeypatch: pytest.MonkeyPatch, num_planned: int | None, duration_s: float | None, share: str
) -> None:
    screen, is_read = Terminal(), asyncio.Event()

    def read() -> Counts:
        is_read.set()
        return Counts(num_done=10, num_failed=2, num_in_flight=3, elapsed_s=8.0)

    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    shown = asyncio.create_task(show_progress(read, num_planned, duration_s))
    await is_read.wait()
    shown.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shown
    assert share in screen.getvalue()
    assert "10 done, 2 failed, 3 in flight" in screen.getvalue()
