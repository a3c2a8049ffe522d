import pytest

from router.core import Load
from router.replicas.identify import Card
from tests.router.replicas.fakes import make_identity, make_member


def make_load(at: float = 0.0, running: int = 0, waiting: int = 0, queued_tokens: int | None = None) -> Load:
    return Load(at, running, waiting, kv_used_ratio=0.5, queued_tokens=queued_tokens)


def test_what_a_report_shows_beyond_ours_is_foreign() -> None:
    """Pitfall: polled load is stale, so a herd forms. Load = last report + what was dispatched since the report."""
    member = make_member()
    replica = member.replica
    replica.in_flight, replica.prefilling, replica.prefilling_tokens = 3, 2, 1000
    member.report(make_load(running=4, waiting=1, queued_tokens=1500), num_ours=3)
    assert (replica.foreign_requests, replica.foreign_tokens) == (2, 500)
    before = replica.expected_wait_s
    replica.in_flight, replica.prefilling, replica.prefilling_tokens = 4, 3, 3000
    replica.prefilling_s = later = 2000 / replica.prefill_tokens_per_s
    assert replica.expected_wait_s - before == pytest.approx(later), "a dispatch counts before any report"


def test_a_report_older_than_our_dispatches_shows_nothing_foreign() -> None:
    member = make_member()
    member.replica.in_flight = 5
    member.report(make_load(running=1), num_ours=5)
    assert (member.replica.foreign_requests, member.replica.foreign_tokens) == (0, 0)


def test_an_engine_that_does_not_say_its_tokens_shows_no_foreign_ones() -> None:
    member = make_member()
    member.report(make_load(running=1, waiting=9), num_ours=0)
    assert (member.replica.foreign_requests, member.replica.foreign_tokens) == (10, 0)


def test_a_report_with_less_foreign_work_is_news() -> None:
    member = make_member()
    assert not member.report(make_load(running=3, queued_tokens=50), num_ours=0)
    assert not member.report(make_load(running=3, queued_tokens=50), num_ours=0)
    assert member.report(make_load(running=2, queued_tokens=50), num_ours=0)
    assert member.report(make_load(running=2, queued_tokens=40), num_ours=0)


def test_what_others_hold_of_the_cache_counts_as_context_until_the_report_ages_out() -> None:
    member = make_member()
    replica = member.replica
    replica.kv_capacity_tokens, replica.held_tokens, replica.awaited_tokens = 100_000, 20_000, 2_000.0
    replica.in_flight, replica.context_tokens = 1, 15_000
    member.report(make_load(running=1), num_ours=1)
    assert (replica.foreign_context_tokens, replica.context_tokens) == (0, 15_000), "nobody else is there"
    for _ in range(2):
        member.report(make_load(running=3), num_ours=1)
        assert (replica.foreign_context_tokens, replica.context_tokens) == (29_000, 44_000)
    assert member.age(100.0, max_age_s=5.0)
    assert (replica.foreign_context_tokens, replica.context_tokens) == (0, 15_000)


def test_of_siblings_it_is_known_what_their_requests_hold() -> None:
    member = make_member()
    replica = member.replica
    replica.kv_capacity_tokens, replica.sibling_in_flight = 1000, 2
    member.report(make_load(running=2), num_ours=2)
    assert (replica.foreign_requests, replica.foreign_context_tokens) == (0, 500)


def test_a_report_ages_out() -> None:
    member = make_member()
    member.report(make_load(at=10.0, running=8, queued_tokens=900), num_ours=0)
    assert not member.age(15.0, max_age_s=5.0)
    assert member.replica.foreign_requests == 8
    assert member.age(15.1, max_age_s=5.0)
    assert (member.replica.load, member.replica.foreign_requests, member.replica.foreign_tokens) == (None, 0, 0)
    assert not member.age(20.0, max_age_s=5.0)


def test_a_lost_replica_keeps_its_open_leases_counted() -> None:
    """Pitfall: a health check that resets the in-flight count."""
    member = make_member()
    member.replica.in_flight = 2
    member.report(make_load(running=9), num_ours=2)
    member.lose(now=1.0)
    assert member.must_identify
    assert (member.replica.in_flight, member.replica.foreign_requests, member.replica.load) == (2, 0, None)


def test_adapters_loaded_later_appear() -> None:
    member = make_member(identity=make_identity("m", block_size=32))
    assert member.relist((Card("m"), Card("sql", parent="m")), now=5.0)
    assert member.replica.adapters == {"sql"}
    assert member.identity == make_identity("m", adapters=["sql"], block_size=32)
    assert not member.must_identify


def test_the_same_list_at_another_time_is_no_news() -> None:
    member = make_member()
    assert not member.relist((Card("m", created=99),), now=5.0)
    assert member.identified_at == 5.0


def test_another_base_model_must_be_identified_anew() -> None:
    member = make_member()
    assert not member.relist((Card("other"),), now=5.0)
    assert member.must_identify
    assert member.replica.models == ("m",)
