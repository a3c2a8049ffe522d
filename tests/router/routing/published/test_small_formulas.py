"""Policies that are one line each."""

from router.core import Load
from tests.router.nouns import make_prompt
from tests.router.routing.published.rig import Rig


def test_lmetric_multiplies_new_tokens_by_the_batch() -> None:
    rig = Rig("lmetric", "ab")
    rig.put("in_flight", a=3, b=1)
    assert rig.decide(make_prompt(160), a=96).scores == {"new-tokens-times-batch": 4 * 64.0}
    assert rig.choose(make_prompt(160), a=64) == "b", "4 x 96 against 2 x 160"
    rig.put("in_flight", a=2)
    assert rig.choose(make_prompt(160), a=64) == "a", "3 x 96 against 2 x 160"


def test_conductor_adds_queued_prefills_to_our_own() -> None:
    rig = Rig("conductor", "ab")
    rig.put("prefilling_s", a=0.030)
    rig.put("in_flight", b=50)
    step = rig.fleet["a"].replica.step
    assert rig.decide(make_prompt(160), a=128).scores["queued-prefill"] == 0.030 + step.prefill_s(32, 160)
    assert rig.choose(make_prompt(160), a=96) == "a"
    assert rig.choose(make_prompt(160), a=48) == "b", "decoding does not count"


def test_conductor_counts_attention_to_what_is_cached() -> None:
    rig = Rig("conductor", "a")
    step = rig.fleet["a"].replica.step
    assert step.prefill_s(100, 10_000) == 100 * (step.token_s + step.attention_s * 9950)


def test_vllm_dp_weighs_waiting_four_times_and_counts_what_it_sent_since_the_report() -> None:
    rig = Rig("vllm-dp", "ab")
    rig.put("load", a=Load(0.0, running=5, waiting=1, kv_used_ratio=0.0), b=Load(0.0, 8, 0, 0.0))
    assert rig.choose() == "b", "8 against 4 + 5"
    rig.place("b")
    assert rig.choose() == "a", "4 + 8 against 4 + 5"
    rig.put("load", b=Load(1.0, 8, 0, 0.0))
    assert rig.choose() == "b", "a new report has it"


def test_vllm_dp_without_reports_goes_by_open_requests() -> None:
    rig = Rig("vllm-dp", "ab")
    rig.put("in_flight", a=2, b=1)
    assert rig.choose() == "b"
