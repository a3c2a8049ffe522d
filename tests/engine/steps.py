"""A computation under the test's control, in place of the model."""

import asyncio
from dataclasses import dataclass, field
from queue import SimpleQueue

from engine.batch import Batch
from tests.engine.requests import next_number, tokens_by


@dataclass(eq=False)
class Steps:
    """A computation that waits for leave before each step, and says when it has begun one."""

    leave: SimpleQueue[Exception | None] = field(default_factory=SimpleQueue)
    begun: SimpleQueue[list[str]] = field(default_factory=SimpleQueue)

    def run(self, batch: Batch) -> list[int | None]:
        self.begun.put([chunk.sequence.request.id for chunk in batch.chunks])
        error = self.leave.get(timeout=10)
        if error is not None:
            raise error
        return tokens_by(next_number, batch)

    async def next(self) -> list[str]:
        """The requests of the step that waits for leave now."""
        return await asyncio.to_thread(self.begun.get, timeout=10)

    def allow(self, count: int = 1) -> None:
        for _ in range(count):
            self.leave.put(None)
