import logging
from typing import Any

import msgspec
import pytest

from router.core import Decision, Lease, Outcome, Pool, Request, Usage
from router.errors import ConnectionCut, PointsmanError
from router.telemetry.journal import Journal
from router.telemetry.metrics import Metrics
from tests.router.nouns import make_demand, make_replica, make_request

SECRETS = "the prompt"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [record.__dict__["fields"] for record in self.records]


def make_journal(level: int = logging.INFO) -> tuple[Journal, Metrics, Lines]:
    logger, lines, metrics = logging.Logger("test", level), Lines(), Metrics()
    logger.addHandler(lines)
    return Journal(metrics, logger), metrics, lines


def make_lease(request: Request | None = None, error: PointsmanError | None = None) -> Lease:
    asked = request or make_request("req-1", arrived=10.0, body=SECRETS.encode())
    demand = msgspec.structs.replace(make_demand(pool=Pool("served")), request=asked)
    decision = Decision(make_replica("a:1"), "pointsman", 48, 16, 0.01, {})
    lease = Lease(demand, decision, 10.5, lambda _: None, lambda _: None)
    lease.error = error
    return lease


USAGE = Usage(prompt_tokens=64, cached_tokens=48, output_tokens=7, first_token_s=0.25, total_s=1.5)


def test_a_place_counts_its_wait_and_what_we_expect_cached() -> None:
    journal, metrics, _ = make_journal()
    journal.placed(make_lease())
    assert metrics.predicted.counts == {("served",): 48}
    spread = metrics.placed.rows[("served",)]
    assert (sum(spread.counts), spread.sum_s) == (1, 0.5)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_attempt_is_counted_by_how_it_ended(outcome: Outcome) -> None:
    journal, metrics, _ = make_journal()
    lease = make_lease()
    lease.release(outcome)
    journal.attempted(lease)
    assert metrics.attempts.counts == {("a:1", outcome.value): 1}


def test_an_attempt_that_was_cancelled_is_the_clients_leaving() -> None:
    journal, metrics, _ = make_journal()
    journal.attempted(make_lease())
    assert metrics.attempts.counts == {("a:1", "client_gone"): 1}


def test_a_retry_is_counted_by_the_error_before() -> None:
    journal, metrics, _ = make_journal()
    journal.retried(ConnectionCut("x"))
    journal.retried(PointsmanError("x"))
    assert metrics.retries.counts == {("replica_connection_lost",): 1, ("server_error",): 1}


def test_the_end_of_a_request_is_counted_once_in_everything() -> None:
    journal, metrics, _ = make_journal()
    lease = make_lease()
    journal.ended(lease.demand.request, lease, 200, USAGE, Outcome.OK)
    assert metrics.requests.counts == {("served", "ok", "200"): 1}
    assert metrics.tokens.counts == {("served", "prompt"): 64, ("served", "cached"): 48, ("served", "output"): 7}
    assert metrics.duration.rows[("served",)].sum_s == 1.5
    assert metrics.first_byte.rows[("served",)].sum_s == 0.25


def test_what_the_replica_did_not_say_is_not_counted() -> None:
    journal, metrics, _ = make_journal()
    lease = make_lease()
    journal.ended(lease.demand.request, lease, 502, Usage(total_s=1.0), Outcome.UPSTREAM_FAILED)
    assert metrics.tokens.counts == {}
    assert metrics.first_byte.rows == {}
    assert metrics.requests.counts == {("served", "upstream_failed", "502"): 1}


def test_the_clients_word_for_a_model_is_no_label() -> None:
    journal, metrics, _ = make_journal()
    journal.ended(make_request(model="made up"), None, 404, Usage(), Outcome.REJECTED)
    assert metrics.requests.counts == {("none", "rejected", "404"): 1}


def test_one_line_says_all_of_a_request() -> None:
    journal, _, lines = make_journal()
    lease = make_lease(make_request("req-1", model="asked", arrived=10.0), error=ConnectionCut("It broke."))
    journal.ended(lease.demand.request, lease, 200, USAGE, Outcome.CUT_MID_STREAM)
    assert lines.fields == [
        {
            "request_id": "req-1",
            "model": "asked",
            "outcome": "cut_mid_stream",
            "status": 200,
            "total_ms": 1500.0,
            "ttft_ms": 250.0,
            "queue_ms": 500.0,
            "prompt_tokens": 64,
            "cached_tokens": 48,
            "output_tokens": 7,
            "replica": "a:1",
            "reason": "policy=pointsman; matched_tokens=48; expected_wait_ms=10.0",
            "error": "It broke.",
        }
    ]


def test_the_line_of_a_request_without_a_place_says_less() -> None:
    journal, _, lines = make_journal()
    journal.ended(make_request("r", model="m"), None, 429, Usage(total_s=0.0), Outcome.REJECTED)
    assert lines.fields == [{"request_id": "r", "model": "m", "outcome": "rejected", "status": 429, "total_ms": 0.0}]


def test_prompts_are_never_logged() -> None:
    journal, _, lines = make_journal(logging.DEBUG)
    lease = make_lease()
    journal.placed(lease)
    journal.attempted(lease)
    journal.ended(lease.demand.request, lease, 200, USAGE, Outcome.OK)
    journal.broke(lease.demand.request)
    assert lines.records
    assert SECRETS not in repr([record.__dict__ for record in lines.records])


def test_a_quiet_log_counts_all_the_same() -> None:
    journal, metrics, lines = make_journal(logging.WARNING)
    lease = make_lease()
    journal.ended(lease.demand.request, lease, 200, USAGE, Outcome.OK)
    assert lines.records == []
    assert metrics.requests.counts == {("served", "ok", "200"): 1}


def test_a_fault_of_our_own_is_logged_with_its_traceback() -> None:
    journal, _, lines = make_journal(logging.WARNING)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        journal.broke(make_request("req-9"))
    assert lines.fields == [{"request_id": "req-9"}]
    assert lines.records[0].exc_info is not None
