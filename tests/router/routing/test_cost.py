from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Replica, Slo
from router.routing.cost import HOST_SHARE, MOST_USED, TERMS, Need, Terms, Weights, terms, total_s, wait_s
from tests.router.nouns import make_prompt, make_replica

ALONE = Weights(
    decode=1.0, delay=1.0, before=1.0, reading=1.0, eviction=1.0, copy=1.0, room=1.0, mixing=0.0, lateness=1.0
)


def weigh(
    replica: Replica,
    num_tokens: int = 1600,
    matched: int = 0,
    host: int = 0,
    output: float = 0.0,
    most_held: int = 0,
    **need: object,
) -> Terms:
    asked = Need(10.0, make_prompt(num_tokens), output, most_held, **need)  # type: ignore[arg-type]
    return terms(asked, replica, replica.step, matched, host, ALONE)


@given(
    fields=st.fixed_dictionaries(
        {
            "in_flight": st.integers(4, 40),
            "prefilling": st.integers(0, 4),
            "silent": st.integers(0, 4),
            "prefilling_s": st.floats(0.0, 9.0),
            "prefilled_at": st.floats(0.0, 30.0),
            "context_tokens": st.integers(0, 10**6),
            "held_tokens": st.integers(0, 10**5),
            "awaited_tokens": st.floats(0.0, 1e4),
            "kv_capacity_tokens": st.none() | st.integers(10**4, 10**6),
            "foreign_tokens": st.integers(0, 10**4),
            "round_trip_s": st.floats(0.0, 0.2),
            "resident_adapters": st.sampled_from([(), ("x",)]),
        }
    ),
    num_tokens=st.integers(1, 10**5),
    matched=st.floats(0.0, 1.0),
    host=st.floats(0.0, 1.0),
    more_held=st.integers(0, 10**4),
    output=st.floats(0.0, 2000.0),
    adapter=st.none() | st.just("x"),
    slo=st.none() | st.builds(Slo, st.none() | st.floats(0.001, 9.0), st.none() | st.floats(0.001, 0.1)),
)
def test_the_total_is_the_sum_of_the_terms(
    fields: dict[str, Any],
    num_tokens: int,
    matched: float,
    host: float,
    more_held: int,
    output: float,
    adapter: str | None,
    slo: Slo | None,
) -> None:
    replica, num_matched = make_replica(**fields), int(matched * (num_tokens - 1))
    replica.silent = min(replica.silent, replica.prefilling)
    need = Need(10.0, make_prompt(num_tokens), output, num_matched + more_held, adapter, slo)
    how = (num_matched, int(host * num_matched), Weights(mixing=0.3))
    found = terms(need, replica, replica.step, *how)
    total = total_s(need, replica, replica.step, wait_s(replica, 10.0), *how)
    assert total == pytest.approx(sum(found.by_name.values()))


def test_the_terms_have_names() -> None:
    busy = make_replica(in_flight=4, prefilling=1, prefilling_s=0.3, prefilled_at=10.2, kv_capacity_tokens=9000)
    busy.held_tokens = 3000
    found = weigh(busy, output=50.0, slo=Slo(0.1, 0.001))
    assert list(found.by_name) == list(TERMS)
    assert all(value > 0.0 for name, value in found.by_name.items() if name not in ("adapter", "round_trip", "copy"))


def test_an_idle_replica_costs_the_prefill_and_the_decoding() -> None:
    replica = make_replica()
    found = weigh(replica, output=10.0)
    step = replica.step
    assert found.by_name == {
        "wait": 0.0,
        "prefill": pytest.approx(step.prefill_s(1600, 1600) + step.decode_s(1, 1600)),
        "adapter": 0.0,
        "round_trip": 0.0,
        "decode": pytest.approx(10 * step.decode_s(1, 1600)),
        "delay": 0.0,
        "reading": 0.0,
        "eviction": found.own_prefill_s,
        "copy": 0.0,
        "room": 0.0,
        "lateness": 0.0,
    }


def test_cached_tokens_are_not_computed_but_attended_to() -> None:
    replica = make_replica()
    found = weigh(replica, num_tokens=1600, matched=1200)
    assert found.own_prefill_s == pytest.approx(400 * (replica.step.token_s + replica.step.attention_s * 1400))
    assert found.own_prefill_s > replica.step.prefill_s(400, 400)


def test_another_copy_of_what_somebody_holds_has_a_price() -> None:
    replica = make_replica()
    assert weigh(replica, matched=400, most_held=1200).copy == pytest.approx(800 * replica.step.token_s)
    assert weigh(replica, matched=1200, most_held=1200).copy == 0.0


def test_tokens_in_host_memory_cost_a_share_of_computing_them() -> None:
    replica = make_replica()
    fetched_s = weigh(replica, matched=1200, host=800).prefill - weigh(replica, matched=1200).prefill
    assert fetched_s == pytest.approx(800 * HOST_SHARE * replica.step.token_s)


def test_queued_prefill_is_waited_for_less_what_time_has_done_of_it() -> None:
    replica = make_replica(in_flight=1, prefilling=1, prefilling_s=2.0, prefilled_at=12.0)
    assert [wait_s(replica, now) for now in (10.0, 11.0, 12.0, 15.0)] == [2.0, 1.0, 0.0, 0.0]


def test_what_is_overdue_is_one_request_and_the_others_have_not_begun() -> None:
    replica = make_replica(in_flight=4, prefilling=4, prefilling_s=2.0, prefilled_at=12.0)
    assert wait_s(replica, 30.0) == 1.5


def test_siblings_and_others_are_waited_for_by_their_tokens() -> None:
    replica = make_replica(sibling_prefilling_tokens=1000, foreign_tokens=500, tokens_per_s=1000.0)
    assert wait_s(replica, 10.0) == 1.5


def test_half_a_step_is_waited_for_where_something_decodes() -> None:
    replica = make_replica(in_flight=3, context_tokens=6000)
    assert weigh(replica).wait == pytest.approx(0.5 * replica.step.decode_s(4, 7600))


def test_each_running_request_is_delayed_by_our_prefill_and_reads_our_kv_with_each_of_its_steps() -> None:
    replica = make_replica(in_flight=3)
    found = weigh(replica, output=20.0)
    assert found.delay == pytest.approx(3 * found.own_prefill_s)
    assert found.reading == pytest.approx(3 * 20 * replica.step.context_s * (1600 + 10))


def test_who_has_yet_to_begin_is_delayed_too_but_not_who_is_answered_in_one_piece() -> None:
    found = weigh(make_replica(in_flight=5, prefilling=4, silent=1))
    # Who is silent may be decoding.
    assert found.delay == pytest.approx((2 + 3) * found.own_prefill_s)


def test_room_is_the_share_that_we_alone_would_fill_for_as_long_as_we_decode_and_dearer_the_scarcer_it_is() -> None:
    replica = make_replica(kv_capacity_tokens=10_000, held_tokens=4000, awaited_tokens=2000.0)
    decode_s = 100 * replica.step.decode_s(1, 1600)
    assert weigh(replica, output=100.0).room == pytest.approx((1600 + 50) / 10_000 * decode_s * 0.5 / 0.5)
    replica.shared_tokens = lambda prompt: 1000
    assert weigh(replica, output=100.0).room == pytest.approx((600 + 50) / 10_000 * decode_s)
    replica.held_tokens, replica.awaited_tokens = 900, 0.0
    assert weigh(replica, output=100.0).room == 0.0, "there is enough"
    replica.held_tokens = 50_000
    full = weigh(replica, output=100.0).room
    assert full == pytest.approx((600 + 50) / 10_000 * decode_s * MOST_USED / (1 - MOST_USED))


def test_a_capacity_that_nobody_knows_has_no_price() -> None:
    assert weigh(make_replica(held_tokens=10**6), output=100.0).room == 0.0


def test_an_adapter_that_is_not_there_is_loaded_and_all_that_run_there_wait_for_it() -> None:
    replica = make_replica(in_flight=2, adapter_load_s=0.5, resident_adapters=("x",))
    assert weigh(replica, adapter="x").adapter == 0.0
    assert weigh(replica, adapter="y").adapter == pytest.approx(3 * 0.5)
    mixing = replace(ALONE, mixing=0.1)
    found = terms(Need(10.0, make_prompt(1600), 20.0, 0, "y"), replica, replica.step, 0, 0, mixing)
    assert found.adapter == pytest.approx(3 * (0.5 + 0.1 * 20 * replica.step.decode_s(3, 1600)))


def test_where_every_slot_is_at_work_an_adapter_waits_an_answer_for_each_that_is_ahead() -> None:
    replica = make_replica(in_flight=8, adapter_load_s=0.5, resident_adapters=("x",))
    answer_s = 20.0 * replica.step.decode_s(9, 1600)
    for num_free, num_ahead in ((1, 0), (0, 1), (-2, 3)):
        replica.num_free_adapter_slots = num_free
        assert weigh(replica, adapter="x", output=20.0).adapter == 0.0
        assert weigh(replica, adapter="y", output=20.0).adapter == pytest.approx(9 * 0.5 + num_ahead * answer_s)


def test_a_distant_region_costs_its_round_trip() -> None:
    assert weigh(make_replica(round_trip_s=0.08)).round_trip == 0.08


def test_only_what_an_slo_is_missed_by_is_late() -> None:
    replica = make_replica(in_flight=1, prefilling=1, prefilling_s=1.0, prefilled_at=11.0)
    first_s = weigh(replica).wait + weigh(replica).prefill
    assert weigh(replica, slo=Slo(ttft_s=first_s + 0.1)).lateness == 0.0
    assert weigh(replica, slo=Slo(ttft_s=first_s - 0.3)).lateness == pytest.approx(0.3)
    next_s = replica.step.decode_s(1, 1600)
    assert weigh(replica, output=40.0, slo=Slo(tpot_s=next_s - 0.001)).lateness == pytest.approx(0.04)
