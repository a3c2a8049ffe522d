from math import ceil
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.prefixes import Medium
from engine.sequence import FinishReason, Output, Request
from engine.text import TextStream
from engine.tokenizer import Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA
from tests.engine.requests import core, next_number, request, tokens_by


def step(engine: EngineCore, now_s: float = 0.0) -> list[Output]:
    batch = engine.plan()
    return engine.commit(batch, tokens_by(next_number, batch), now_s)


def run(engine: EngineCore) -> list[Output]:
    outputs: list[Output] = []
    while engine.has_work:
        outputs += step(engine)
    return outputs


def test_each_token_comes_out_in_its_own_step_until_the_limit() -> None:
    engine = core()
    engine.add(request((1, 2), max_tokens=3))
    outputs = run(engine)
    assert [output.token_ids for output in outputs] == [(3,), (4,), (5,)]
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.LENGTH]
    assert [output.num_output_tokens for output in outputs] == [1, 2, 3]


def test_the_end_of_sequence_ends_it_and_counts_as_a_token() -> None:
    engine = core()
    engine.add(request((1, 2), eos_token_ids=frozenset({4})))
    last = run(engine)[-1]
    assert (last.finish_reason, last.stop_reason, last.num_output_tokens) == (FinishReason.STOP, None, 2)


def test_a_stop_token_is_named_as_the_reason() -> None:
    engine = core()
    engine.add(request((1, 2), stop_token_ids=frozenset({5})))
    last = run(engine)[-1]
    assert (last.finish_reason, last.stop_reason, last.num_output_tokens) == (FinishReason.STOP, 5, 3)


def test_a_stop_token_before_the_least_number_of_tokens_does_not_stop() -> None:
    engine = core()
    engine.add(request((1, 2), stop_token_ids=frozenset({4, 7}), min_tokens=3))
    assert run(engine)[-1].stop_reason == 7


def test_a_stop_string_ends_the_text_before_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "tiny.gguf", METADATA, {}))
    first = tokenizer.encode("a")[0]
    engine = core()
    engine.add(request((first,), stop=("d",)), TextStream(tokenizer.decoder(), ("d",)))
    outputs = run(engine)
    assert [output.text for output in outputs] == ["b", "c", ""]
    assert outputs[-1].stop_reason == "d"


def test_an_abort_frees_the_blocks_and_a_second_one_is_nothing() -> None:
    engine = core()
    engine.add(request(range(10), name="a"))
    step(engine)
    engine.abort("a")
    engine.abort("a")
    assert not engine.has_work
    assert engine.scheduler.pool.num_used == 0
    assert engine.stats.finished == {FinishReason.ABORT: 1}


def test_a_failed_step_ends_its_own_requests_only() -> None:
    engine = core(max_num_seqs=1)
    engine.add(request(name="a"))
    engine.add(request(name="b"))
    outputs = engine.fail(engine.plan(), "it broke")
    assert [(output.request_id, output.error, output.finish_reason) for output in outputs] == [
        ("a", "it broke", FinishReason.ERROR)
    ]
    assert {output.request_id for output in run(engine)} == {"b"}


def test_a_failure_half_way_through_a_commit_ends_the_rest() -> None:
    engine = core()
    engine.add(request(name="a", max_tokens=1))
    engine.add(request(name="b", max_tokens=1))
    batch = engine.plan()
    with pytest.raises(ValueError, match="zip"):
        engine.commit(batch, tokens_by(next_number, batch)[:1], 0.0)
    assert [output.request_id for output in engine.fail(batch, "it broke")] == ["b"]
    assert not engine.has_work


def test_waits_are_measured_from_arrival_and_between_tokens() -> None:
    engine = core()
    engine.add(request(range(5), max_tokens=3))
    for now_s in (0.3, 0.5, 0.6):
        step(engine, now_s)
    stats = engine.stats
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (5, 3)
    assert stats.first_token_s.total == 0.3
    assert (sum(stats.next_token_s.counts), round(stats.next_token_s.total, 6)) == (2, 0.3)


def test_the_cached_tokens_are_those_of_the_first_admission() -> None:
    engine = core(num_blocks=6)
    engine.add(request(range(8), max_tokens=1))
    run(engine)
    engine.add(request(range(9), max_tokens=8))
    engine.add(request(range(100, 108), name="later", max_tokens=16))
    outputs = run(engine)
    assert engine.scheduler.num_preemptions > 0
    assert {output.num_cached_tokens for output in outputs if output.request_id == "later"} == {0}
    assert {output.num_cached_tokens for output in outputs if output.request_id != "later"} == {8}


def test_a_failed_step_that_had_copies_to_make_lets_all_others_begin_again() -> None:
    engine = core(num_blocks=8, num_host_blocks=8, max_num_seqs=2, max_num_batched_tokens=8)
    engine.add(request(range(16), name="cached", max_tokens=1))
    run(engine)
    engine.add(request(range(100, 128), name="evicts", max_tokens=1))
    engine.add(request(range(4), name="other", max_tokens=2))
    batch = engine.plan()
    while not batch.copies:
        engine.commit(batch, tokens_by(next_number, batch), 0.0)
        batch = engine.plan()
    engine.fail(batch, "it broke")
    assert repr(engine.scheduler.pool) == "<BlockPool 8 free 0 used 0 cached <HostTier 8 free 0 cached>>"
    assert [output.finish_reason for output in run(engine)][-1] == FinishReason.LENGTH


def test_asleep_it_computes_nothing_and_awake_it_goes_on_where_it_was() -> None:
    engine = core()
    engine.add(request((1, 2), max_tokens=4))
    outputs = step(engine)
    engine.sleep(1)
    assert not engine.has_work
    assert repr(engine.scheduler) == "<Scheduler 0 running 1 waiting <BlockPool 64 free 0 used 0 cached>>"
    engine.wake()
    outputs += run(engine)
    assert [token for output in outputs for token in output.token_ids] == [3, 4, 5, 6]


def state(engine: EngineCore) -> list[object]:
    """All that later steps depend on."""
    scheduler, pool = engine.scheduler, engine.scheduler.pool
    sequences = [(s.request.id, s.tokens, s.table, s.num_computed, s.last_token_s) for s in scheduler.running]
    waiting = [s.request.id for s in scheduler.waiting]
    prefixes = [(p.hash, p.block, p.host_block) for p in pool.held(Medium.GPU)]
    totals = (engine.stats.num_output_tokens, engine.stats.next_token_s.counts, engine.stats.finished)
    return [sequences, waiting, prefixes, list(pool._cached), list(pool._free), totals]


def told(outputs: list[Output]) -> dict[str, tuple[int, FinishReason | None]]:
    return {output.request_id: (output.num_output_tokens, output.finish_reason) for output in outputs}


def random_request(random: Random) -> Request:
    start = random.choice([0, 0, 50])
    return request(range(start, start + random.randint(2, 20)), max_tokens=random.randint(1, 12))


@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(8, 30),
    num_host_blocks=st.sampled_from([0, 4]),
    share=st.floats(0.1, 1),
)
@settings(max_examples=60, deadline=None)
def test_steady_steps_taken_at_once_are_equal_to_single_ones(
    seed: int, num_blocks: int, num_host_blocks: int, share: float
) -> None:
    random = Random(seed)
    requests = [random_request(random) for _ in range(8)]
    options = {"num_blocks": num_blocks, "num_host_blocks": num_host_blocks, "max_num_seqs": random.randint(1, 4)}
    at_once, singly = core(**options), core(**options)
    now_s = 0.0
    for asked in requests:
        for engine in (at_once, singly):
            engine.add(asked)
        for _ in range(random.randrange(4)):
            now_s = advance_both(at_once, singly, now_s, share)
    while singly.has_work:
        now_s = advance_both(at_once, singly, now_s, share)
    assert not at_once.has_work


def advance_both(at_once: EngineCore, singly: EngineCore, now_s: float, share: float) -> float:
    """A part of what can be taken at once, or a single step."""
    num_steps = ceil(at_once.num_steady_steps() * share)
    ends_s = [now_s + index + 1 for index in range(max(num_steps, 1))]
    if num_steps:
        outputs = at_once.advance(lambda s, n: [s.tokens[-1] + 1 + index for index in range(n)], ends_s)
    elif at_once.has_work:
        outputs = step(at_once, ends_s[0])
    expected = [output for end_s in ends_s if singly.has_work for output in step(singly, end_s)]
    if expected:
        assert told(outputs) == told(expected)
    assert state(at_once) == state(singly)
    return ends_s[-1]


def test_a_sequence_that_may_end_early_is_not_steady() -> None:
    engine = core()
    engine.add(request(max_tokens=8))
    step(engine)
    assert engine.num_steady_steps() == 6
    engine.add(request(max_tokens=8, stop_token_ids=frozenset({9})))
    step(engine), step(engine)
    assert engine.num_steady_steps() == 0
