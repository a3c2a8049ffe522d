"""What happened to each request: counts it and logs one line. Knows metrics and log fields; decides nothing."""

import logging
import time
from collections.abc import Callable

from router.core import Lease, Outcome, Request, Usage
from router.errors import PointsmanError
from router.telemetry.metrics import Count, Metrics
from router.telemetry.recording import Recording


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
        recording: Recording | None = None,
    ) -> None:
        self._metrics = metrics
        self._logger = logger
        self._failed = failed
        self._answered = answered
        self._recording = recording
        self._is_logging = logger.isEnabledFor(logging.INFO)
        self._rows: dict[str, _Rows] = {}
        self._answered_by: dict[str, Count] = {}

    def placed(self, lease: Lease) -> None:
        rows = self._rows_of(lease.demand.pool.model)
        rows.placed.observe(lease.taken_at - lease.demand.request.arrived)
        rows.predicted.total += lease.decision.matched_tokens

    def attempted(self, lease: Lease) -> None:
        id, outcome = lease.replica.id, lease.outcome
        if outcome is Outcome.OK:
            row = self._answered_by.get(id)
            if row is None:
                row = self._answered_by[id] = self._metrics.attempts.row((id, outcome))
            row.total += 1
            return
        self._metrics.attempts.add((id, outcome or Outcome.CLIENT_GONE))
        self._failed(lease, time.monotonic())

    def retried(self, error: PointsmanError) -> None:
        self._metrics.retries.add((error.code or error.type,))

    def broke(self, request: Request) -> None:
        """A fault of our own: the one place where a traceback is logged."""
        self._logger.exception("the router failed to serve a request", extra={"fields": {"request_id": request.id}})

    def ended(
        self,
        request: Request,
        lease: Lease | None,
        status: int,
        usage: Usage,
        outcome: Outcome,
        num_events: int = 0,
    ) -> None:
        # Unknown models are the client's words: as labels they would have no bound.
        rows = self._rows_of(lease.demand.pool.model if lease is not None else "none")
        rows.ended(outcome, status).total += 1
        rows.duration.observe(usage.total_s)
        if usage.first_token_s is not None:
            rows.first_byte.observe(usage.first_token_s)
        if usage.prompt_tokens is not None:
            rows.prompt_tokens.total += usage.prompt_tokens
        if usage.cached_tokens is not None:
            rows.cached_tokens.total += usage.cached_tokens
        if usage.output_tokens is not None:
            rows.output_tokens.total += usage.output_tokens
        if lease is not None:
            if lease.outcome is Outcome.OK and lease.ended_at is not None:
                self._answered(lease, usage, lease.ended_at)
            if self._recording is not None:
                self._recording.note(lease, usage, num_events)
        if self._is_logging:
            self._logger.info("request", extra={"fields": _fields(request, lease, status, usage, outcome)})

    def _rows_of(self, model: str) -> "_Rows":
        rows = self._rows.get(model)
        if rows is None:
            rows = self._rows[model] = _Rows(self._metrics, model)
        return rows


class _Rows:
    """One model's rows in the metrics, at hand: each request counts in most of them."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.placed, self.duration = metrics.placed.row((model,)), metrics.duration.row((model,))
        self.first_byte, self.predicted = metrics.first_byte.row((model,)), metrics.predicted.row((model,))
        kinds = ("prompt", "cached", "output")
        self.prompt_tokens, self.cached_tokens, self.output_tokens = (metrics.tokens.row((model, k)) for k in kinds)
        self._model, self._requests = model, metrics.requests
        self._ended: dict[tuple[Outcome, int], Count] = {}

    def ended(self, outcome: Outcome, status: int) -> Count:
        row = self._ended.get((outcome, status))
        if row is None:
            row = self._ended[outcome, status] = self._requests.row((self._model, outcome, str(status)))
        return row


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
        standing = lease.demand.standing
        if standing is not None:
            fields |= {"tenant": standing.tenant, "class": standing.band.name.lower()}
        if lease.error is not None:
            fields["error"] = str(lease.error)
    return fields
