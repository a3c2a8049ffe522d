"""Whole runs of small fleets: every request is answered once, and the same seed gives the same run."""

from dataclasses import replace

import pytest

from loadtest.simulator import station
from loadtest.simulator.job import Job
from loadtest.simulator.knowledge import Knowledge
from loadtest.simulator.profile import profile
from loadtest.simulator.sessions import Sessions, Users
from loadtest.simulator.setup import Lora, Setup
from loadtest.simulator.simulate import Finished, simulate
from loadtest.simulator.workload import Writer
from router.routing.presets import NAMES
from tests.loadtest.simulator.small import PROFILE, setup

LATE = Knowledge(metrics_interval_ms=100, kv_event_delay_ms=50)
LORA = Lora(num_slots=2, num_host_slots=3, num_bytes=80_000_000, step_share=0.03)
ADAPTERS = ("a", "b", "c", "d", "e")


def seen(finished: Finished) -> list[tuple[object, ...]]:
    return [
        (job.ask.number, job.replica_id, job.num_cached_tokens, job.first_token_s, job.ended_s) for job in finished.jobs
    ]


def is_answered(job: Job) -> bool:
    return job.first_token_s is not None and job.ended_s is not None and not job.is_refused


@pytest.mark.parametrize("policy", NAMES)
def test_every_policy_answers_every_request_once(policy: str) -> None:
    finished = simulate(setup(policy))
    assert [job.ask.number for job in finished.jobs] == list(range(120))
    assert all(map(is_answered, finished.jobs))
    assert all(not replica.core.has_work for replica in finished.replicas)


@pytest.mark.parametrize(
    "given",
    [
        setup(),
        setup("random", seed=3),
        setup(knowledge=LATE),
        setup(knowledge=Knowledge(routers=4, metrics_interval_ms=50)),
        setup(lora=LORA, adapters=ADAPTERS, num_replicas=2),
    ],
    ids=["fresh", "random", "late", "routers", "adapters"],
)
def test_the_same_seed_gives_the_same_run_and_stretches_change_nothing(given: Setup) -> None:
    first = seen(simulate(given))
    assert seen(simulate(given)) == first
    assert seen(simulate(replace(given, can_stretch=False))) == first


def test_another_load_comes_sooner_and_another_seed_differs() -> None:
    slow, fast = simulate(setup()), simulate(setup(load=4.0))
    assert fast.duration_s < slow.duration_s
    assert fast.jobs[-1].arrived_s == pytest.approx(slow.jobs[-1].arrived_s / 4)
    assert seen(simulate(setup(seed=1))) != seen(slow)


def test_with_fresh_events_what_a_router_expects_is_what_the_replica_finds() -> None:
    finished = simulate(setup("llm-d-precise", load=0.2))
    expected = [job.num_matched_tokens for job in finished.jobs]
    # A request may find more than was expected: blocks of one that was on its way.
    assert all(job.num_cached_tokens >= at_least for job, at_least in zip(finished.jobs, expected, strict=True))
    assert sum(expected) > 0


def test_without_events_routers_still_find_prefixes() -> None:
    told, untold = (
        simulate(setup(knowledge=Knowledge(kv_events=kv_events), num_requests=300)) for kv_events in (True, False)
    )
    hits = [sum(job.num_cached_tokens for job in finished.jobs) for finished in (told, untold)]
    blind = sum(job.num_cached_tokens for job in simulate(setup("random", num_requests=300)).jobs)
    assert hits[0] > 1.1 * blind
    assert hits[1] > 1.1 * blind


def test_a_host_tier_brings_back_what_was_evicted() -> None:
    without, with_host = (
        simulate(setup("round-robin", num_replicas=1, num_requests=200, host_tokens=tokens)) for tokens in (0, 50_000)
    )
    assert sum(replica.num_evicted for replica in without.replicas) > 0
    hits = [sum(job.num_cached_tokens for job in finished.jobs) for finished in (without, with_host)]
    assert hits[1] > hits[0]


def test_adapters_are_loaded_and_slots_bound_what_runs_at_once() -> None:
    few = simulate(setup("random", lora=LORA, adapters=ADAPTERS))
    plenty = simulate(setup("random", lora=replace(LORA, num_slots=5), adapters=ADAPTERS))
    assert all(map(is_answered, few.jobs))
    assert sum(replica.num_adapter_loads for replica in few.replicas) > 3 * 5
    assert sum(replica.num_adapter_loads for replica in plenty.replicas) == 3 * 5


def test_a_run_that_cannot_attain_any_more_stops() -> None:
    given = setup("round-robin", num_replicas=1, load=40.0, num_requests=200)
    whole, aborted = simulate(given), simulate(given, min_attainment=0.9)
    assert not whole.is_aborted
    assert sum(job.meets_slo for job in whole.jobs if job.is_counted) < 0.9 * 180
    assert aborted.is_aborted
    assert aborted.duration_s < whole.duration_s


def test_a_run_that_attains_is_the_same_whether_or_not_it_may_stop() -> None:
    assert seen(simulate(setup(), min_attainment=0.9)) == seen(simulate(setup()))


@pytest.mark.parametrize("max_wait_s", [0.2, 30.0])
def test_who_is_refused_early_or_late_is_counted_and_the_run_ends(
    max_wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(station, "MAX_WAIT_S", max_wait_s)
    monkeypatch.setattr(station, "MAX_IN_FLIGHT", 1)
    finished = simulate(setup("least-request", num_replicas=1, load=30.0, num_requests=400))
    refused = [job for job in finished.jobs if job.is_refused]
    assert 0 < len(refused) < 400
    assert all(is_answered(job) != job.is_refused for job in finished.jobs)
    assert not any(job.meets_slo for job in refused)


def test_progress_goes_from_nothing_to_near_one() -> None:
    told: list[float] = []
    simulate(setup(num_requests=200), on_done=told.append)
    assert told[0] == 0.0
    assert told == sorted(told)
    assert 0.9 < told[-1] < 1.0


def test_users_ask_their_next_turn_after_the_answer_and_as_many_as_the_load_at_a_time() -> None:
    big = profile("llama3-8b-h100-tp1")
    users = Users(Sessions(kind="interactive-chat", requests=150), Writer(big, 512), seed=0)
    finished = simulate(Setup(users, big, 2, "pointsman", load=12))
    assert len(finished.jobs) == 150
    assert all(map(is_answered, finished.jobs))
    ended: dict[str | None, float] = {}
    for job in finished.jobs:
        assert job.arrived_s > ended.get(job.ask.session, 0.0)
        assert job.ended_s is not None
        ended[job.ask.session] = job.ended_s
    moments = sorted(
        [(job.arrived_s, 1) for job in finished.jobs] + [(job.ended_s or 0.0, -1) for job in finished.jobs]
    )
    num_open = [sum(step for _, step in moments[: place + 1]) for place in range(len(moments))]
    assert max(num_open) <= 12


def test_the_whole_prompt_of_an_idle_replica_meets_the_objective() -> None:
    finished = simulate(setup(load=0.01, num_requests=20))
    assert all(job.meets_slo for job in finished.jobs)
    assert all((job.ttft_s or 0.0) >= PROFILE.o0 / 1e3 for job in finished.jobs)


def test_a_fleet_of_a_thousand_replicas_is_simulated_too() -> None:
    finished = simulate(setup(num_replicas=1000, num_requests=100, load=50.0))
    assert len(finished.replicas) == 1000
    assert all(map(is_answered, finished.jobs))
    assert len({job.replica_id for job in finished.jobs}) > 8
