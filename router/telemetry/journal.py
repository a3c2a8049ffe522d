"""What happened to each request: counts it and logs one line. Knows metrics and log fields; decides nothing."""

import logging
import time
from collections.abc import Callable

from router.core import Lease, Outcome, Request, Usage
from router.errors import PointsmanError
from router.telemetry.metrics import Metrics


class Journal:
    """Told by the proxy at its joints. One log line a request, when it ended; never prompts or answers.

    `failed(lease, now)` and `answered(lease, usage, now)` are told of each attempt's end, to learn from it.
    """

    def __init__(
        self,
        metrics: Metrics,
        logger: logging.Logger,
        failed: Callable[[Lease, float], None] = lambda *_: None,
        answered: Callable[[Lease, Usage, float], None] = lambda *_: None,
    ) -> None:
        self._metrics = metrics
        self._logger = logger
        self._failed = failed
        self._answered = answered
        self._is_logging = logger.isEnabledFor(logging.INFO)

    def placed(self, lease: Lease) -> None:
        model = lease.demand.pool.model
        self._metrics.placed.observe(lease.taken_at - lease.demand.request.arrived, (model,))
        self._metrics.predicted.add((model,), lease.decision.matched_tokens)

    def attempted(self, lease: Lease) -> None:
        self._metrics.attempts.add((lease.replica.id, lease.outcome or Outcome.CLIENT_GONE))
        if lease.outcome is not Outcome.OK:
            self._failed(lease, time.monotonic())

    def retried(self, error: PointsmanError) -> None:
        self._metrics.retries.add((error.code or error.type,))

    def broke(self, request: Request) -> None:
        """A fault of our own: the one place where a traceback is logged."""
        self._logger.exception("the router failed to serve a request", extra={"fields": {"request_id": request.id}})

    def ended(self, request: Request, lease: Lease | None, status: int, usage: Usage, outcome: Outcome) -> None:
        # Unknown models are the client's words: as labels they would have no bound.
        model = lease.demand.pool.model if lease is not None else "none"
        self._metrics.requests.add((model, outcome, str(status)))
        self._metrics.duration.observe(usage.total_s, (model,))
        if usage.first_token_s is not None:
            self._metrics.first_byte.observe(usage.first_token_s, (model,))
        self._count_tokens(model, usage)
        if lease is not None and lease.outcome is Outcome.OK:
            self._answered(lease, usage, time.monotonic())
        if self._is_logging:
            self._logger.info("request", extra={"fields": _fields(request, lease, status, usage, outcome)})

    def _count_tokens(self, model: str, usage: Usage) -> None:
        tokens = self._metrics.tokens
        if usage.prompt_tokens is not None:
            tokens.add((model, "prompt"), usage.prompt_tokens)
        if usage.cached_tokens is not None:
            tokens.add((model, "cached"), usage.cached_tokens)
        if usage.output_tokens is not None:
            tokens.add((model, "output"), usage.output_tokens)


def _counts(usage: Usage) -> dict[str, int]:
    counts = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "output": usage.output_tokens}
    return {kind: count for kind, count in counts.items() if count is not None}


def _fields(request: Request, lease: Lease | None, status: int, usage: Usage, outcome: Outcome) -> dict[str, object]:
    fields: dict[str, object] = {
        "request_id": request.id,
        "model": request.model,
        "outcome": outcome,
        "status": status,
        "total_ms": round(usage.total_s * 1e3, 1),
        **{f"{kind}_tokens": count for kind, count in _counts(usage).items()},
    }
    if usage.first_token_s is not None:
        fields["ttft_ms"] = round(usage.first_token_s * 1e3, 1)
    if lease is not None:
        fields |= {
            "replica": lease.replica.id,
            "reason": lease.decision.reason,
            "queue_ms": round((lease.taken_at - request.arrived) * 1e3, 1),
        }
        if lease.error is not None:
            fields["error"] = str(lease.error)
    return fields
