"""The step model against what was measured."""

import pytest

from loadtest.errors import UsageError
from loadtest.simulator.profile import host_tier_tokens, overheads, profile


def test_a_full_chunk_of_a_32b_model_takes_what_was_measured() -> None:
    # 479 ms for 8,192 tokens, 17.1k tokens/s.
    assert profile("qwen3-32b-h100-tp2").prefill_s(8192) == pytest.approx(0.479, rel=0.02)


def test_a_step_is_the_sum_of_its_parts() -> None:
    engine = profile("llama3-70b-h100-tp4")
    assert engine.step_s([], 1, 1000) == pytest.approx((14.0 + 0.037 + 4.76e-5 * 1000 + 2.69 + 0.0044) / 1e3)
    compute = 0.0725 * 4010 + 1.2 + 1.0e-6 * 4000 * (500 + 2000) + 4.76e-5 * 1000 + 2.69 + 0.0044 * 11
    assert engine.step_s([(4000, 500)], 10, 1000) == pytest.approx(compute / 1e3)
    assert engine.step_s([(4000, 500)], 10, 1000, num_host_tokens=1000) == pytest.approx((compute + 0.06 * 72.5) / 1e3)


def test_decode_steps_are_to_the_bit_those_taken_one_by_one() -> None:
    engine = profile("llama3-8b-h100-tp1")
    context, expected = 12_345, []
    for _ in range(50):
        expected.append(engine.step_s([], 7, context))
        context += 7
    assert engine.decode_steps_s(7, 12_345, 50) == expected


def test_a_misspelt_profile_is_told_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean llama3-8b-h100-tp1"):
        profile("llama3-8b-h100")


def test_the_shipped_numbers_are_there() -> None:
    assert overheads().request_s == pytest.approx(0.0156)
    assert host_tier_tokens() == 2_000_000
