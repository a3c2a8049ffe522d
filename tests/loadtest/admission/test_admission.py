"""The load tests of admission, small: that each measures what it says."""

import pytest

from loadtest.admission import __main__ as command
from loadtest.admission import chaos, company, depth, live, virtual
from loadtest.admission.company import Start, check
from router.core import Band


def test_a_start_before_one_who_had_come_earlier_is_found() -> None:
    fine = [Start(1, 0.0, 1.0, 2.0), Start(1, 0.5, 1.2, 2.0), Start(3, 0.1, 5.0, 6.0), Start(1, 0.05, 1.0, 2.0)]
    assert check(fine, 2).num_violations == 0
    found = check([*fine, Start(1, 0.7, 1.1, 2.0)], 2)
    assert (found.num_violations, found.num_started) == (1, 5)
    assert found.worst_s == pytest.approx(0.1)
    never = check([Start(1, 0.0, None, 9.0), Start(1, 0.5, 1.0, 2.0)], 2)
    assert (never.num_violations, never.worst_s) == (1, 8.0)


def test_starts_within_the_tolerance_are_no_violation() -> None:
    assert check([Start(1, 0.0, 2.0, 3.0), Start(1, 0.09, 1.0, 2.0)], 1).num_violations == 0


def test_the_share_of_bulk_is_of_those_that_started() -> None:
    starts = [Start(Band.NORMAL, 0.0, 0.1, 1.0)] * 3 + [Start(Band.BULK, 0.0, 0.1, 1.0), Start(Band.BULK, 0.0, None, 1)]
    assert check(starts, 1).bulk_share == 0.25


def test_costs_of_a_line_are_positive_and_its_entries_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "NUM_MEASURED", 500)
    found = depth.measure(20_000)
    assert found.push_us > 0.0
    assert found.grant_us > 0.0
    assert found.entry_bytes > 50


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
async def test_routers_of_several_processes_keep_one_order() -> None:
    found = await company.measure(3, 4.0)
    assert found.num_started > 200
    assert found.worst_s < 0.05, "but for a grant that is a few milliseconds on its way to its process"


def test_what_is_wrong_with_the_words_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["everything"])
    assert "invalid choice" in capsys.readouterr().err
