"""The load tests of admission, small: that each measures what it says."""

from typing import Any

import pytest

from loadtest.admission import __main__ as command
from loadtest.admission import chaos, company, depth, live, shared, virtual
from loadtest.admission.company import Start, check
from router.core import Band


def start(arrived: float, started: float | None, left: float = 9.0, band: Band = Band.NORMAL, **fields: Any) -> Start:
    return Start(band, fields.pop("tenant", "a"), arrived, started, left, **fields)


def test_a_start_while_one_that_was_queued_long_before_still_waits_is_found() -> None:
    fine = [start(0.0, 1.0), start(0.5, 1.2), start(0.1, 5.0, band=Band.BULK), start(0.05, 3.0, tenant="b")]
    assert check(fine).num_violations == 0
    found = check([*fine, start(0.7, 1.1)])
    assert (found.num_violations, found.num_started) == (1, 5)
    assert found.worst_s == pytest.approx(0.1)
    never = check([start(0.0, None), start(0.5, 1.0)])
    assert (never.num_violations, never.worst_s) == (1, 8.0)


def test_every_start_is_checked_against_all_before_it_and_not_only_the_last() -> None:
    found = check([start(0.0, 5.0), start(0.2, 1.0), start(0.4, 2.0), start(0.6, 6.0)])
    assert (found.num_violations, found.worst_s) == (2, 4.0)


def test_starts_within_the_tolerance_and_without_redis_are_no_violation() -> None:
    assert check([start(0.0, 2.0), start(0.09, 1.0)]).num_violations == 0
    found = check([start(0.0, 2.0), start(0.5, 1.0, is_alone=True)])
    assert (found.num_violations, found.num_alone, found.num_started) == (0, 1, 2)


def test_the_share_of_bulk_is_of_those_that_started() -> None:
    starts = [start(0.0, 0.1)] * 3 + [start(0.0, 0.1, band=Band.BULK), start(0.0, None, band=Band.BULK)]
    assert check(starts).bulk_share == 0.25


def test_costs_of_a_line_are_positive_and_its_entries_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "NUM_MEASURED", 500)
    found = depth.measure(20_000)
    assert found.push_us > 0.0
    assert found.grant_us > 0.0
    assert found.entry_bytes > 50


async def test_costs_of_the_common_line_are_of_redis_and_of_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "DEPTHS", (1000, 5000))
    monkeypatch.setattr(shared, "NUM_ROUNDS", 1)
    found = await shared.measure()
    assert [cost.depth for cost in found] == [1000, 5000]
    for spent in (each for cost in found for each in (cost.push, cost.grant, cost.short_push, cost.short_grant)):
        assert spent.redis_us > 0.0
        assert spent.router_us > 0.0
    assert str(found[1]).startswith("    5,000 waiting: push ")


def test_a_flood_does_not_hold_up_the_quiet_tenant_and_overload_keeps_the_goodput() -> None:
    even, flood = virtual.isolation(120.0, times=20.0)
    assert flood.tallies["quiet"].num_done == even.tallies["quiet"].num_done
    assert flood.tallies["quiet"].p95_s <= 0.1 * flood.tallies["other"].p95_s
    assert flood.tallies["other"].num_refused > 10_000
    assert flood.tallies["quiet"].num_refused == 0
    full, tenfold = virtual.overload(60.0)
    assert tenfold.tallies["all"].num_done >= 0.95 * full.tallies["all"].num_done
    assert tenfold.tallies["all"].num_untold == 0
    assert tenfold.most_waiting <= tenfold.max_waiting


async def test_a_request_that_fits_is_measured_without_redis_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "NUM_UNCONTENDED", 2000)
    found = await live.measure_fit()
    assert found.commands_per_request == 0.0
    assert found.place_us > 0.0


async def test_grants_are_counted() -> None:
    found = await live.measure_grants(1500, capacity=32)
    assert found.per_s > 0
    assert found.num_turns > 1


@pytest.mark.slow
async def test_blows_to_redis_leave_nobody_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "BLOW_S", 0.7)
    found = await chaos.measure(5.0)
    assert found.num_blows >= 3
    assert (found.num_unanswered, found.left_over) == (0, 0)
    assert found.num_answered > 100


@pytest.mark.slow
async def test_starts_of_several_processes_are_checked_together() -> None:
    found = await company.measure(3, 4.0)
    assert found.num_started > 0
    assert found.num_waited_long <= found.num_started


def test_what_is_wrong_with_the_words_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["everything"])
    assert "invalid choice" in capsys.readouterr().err
