from pathlib import Path

import pytest

from engine.core import EngineCore
from engine.sequence import FinishReason, Output
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
