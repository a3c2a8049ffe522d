from itertools import islice, pairwise

import pytest

from loadtest.settings import RunSettings
from loadtest.trace import Row, Trace
from loadtest.workload import Conversation, Piece, conversations, text_of


def plan(settings: RunSettings, trace: Trace | None = None, first: int = 1000) -> list[Conversation]:
    return list(islice(conversations(settings, trace), first))


def words(conversation: Conversation, turn: int = 0) -> int:
    return sum(piece.num_words for piece in conversation.turns[turn].pieces)


def test_an_equal_key_gives_an_equal_text_and_a_shorter_one_its_beginning() -> None:
    long, short = text_of((Piece("k", 20),)), text_of((Piece("k", 8),))
    assert len(long.split()) == 20
    assert long.split()[:8] == short.split()
    assert text_of((Piece("k", 20),)) == long
    assert text_of((Piece("other", 20),)) != long
    assert text_of(()) == ""


def test_the_same_seed_gives_the_same_plan_and_another_seed_shares_nothing() -> None:
    settings = RunSettings(rate=5.0, requests=30, turns=3, prefix_share=0.5)
    assert plan(settings) == plan(settings)
    other = plan(RunSettings(rate=5.0, requests=30, turns=3, prefix_share=0.5, seed=1))
    mine = {piece.key for talk in plan(settings) for turn in talk.turns for piece in (*talk.system, *turn.pieces)}
    theirs = {piece.key for talk in other for turn in talk.turns for piece in (*talk.system, *turn.pieces)}
    assert not mine & theirs


@pytest.mark.parametrize(("requests", "turns"), [(10, 1), (10, 3), (9, 3), (2, 5)])
def test_exactly_the_asked_requests_are_planned(requests: int, turns: int) -> None:
    talks = plan(RunSettings(concurrency=2, requests=requests, turns=turns))
    assert sum(len(talk.turns) for talk in talks) == requests
    assert all(len(talk.turns) <= turns for talk in talks)


def test_only_time_ends_a_plan_without_a_number() -> None:
    assert len(plan(RunSettings(concurrency=1, duration_s=1.0), first=500)) == 500
    assert len(plan(RunSettings(concurrency=1))) == 100


def test_lengths_lie_around_their_means() -> None:
    talks = plan(RunSettings(concurrency=1, requests=1000, input_tokens=200, output_tokens=40))
    inputs = [words(talk) for talk in talks]
    outputs = [talk.turns[0].max_tokens for talk in talks]
    assert 100 <= min(inputs) < max(inputs) <= 300
    assert 20 <= min(outputs) < max(outputs) <= 60
    assert sum(inputs) / 1000 == pytest.approx(200, rel=0.05)
    assert sum(outputs) / 1000 == pytest.approx(40, rel=0.05)


def test_the_shared_prefix_is_the_same_everywhere_and_part_of_the_length() -> None:
    talks = plan(RunSettings(concurrency=1, requests=1000, input_tokens=200, prefix_share=0.75))
    assert {talk.system for talk in talks} == {(Piece("0/shared", 150),)}
    assert sum(words(talk) for talk in talks) / 1000 == pytest.approx(50, rel=0.05)


def test_arrivals_are_poisson_at_the_rate_of_requests() -> None:
    talks = plan(RunSettings(rate=10.0, requests=4000, turns=2), first=2000)
    arrivals = [talk.at_s for talk in talks if talk.at_s is not None]
    assert arrivals[0] == 0.0
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(2 / 10.0, rel=0.1)
    # An exponential distribution spreads as far as its mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.1)


def test_a_closed_loop_has_no_arrivals() -> None:
    assert {talk.at_s for talk in plan(RunSettings(concurrency=3))} == {None}


TRACE = Trace(
    "mine",
    (
        Row(0.0, num_input_tokens=1100, num_output_tokens=9, block_ids=(7, 8, 9), tenant="t1"),
        Row(4.0, num_input_tokens=1024, num_output_tokens=0, block_ids=(7, 8)),
        Row(6.0, num_input_tokens=600, num_output_tokens=80, block_ids=(7,)),
    ),
    block_size=512,
)


def test_equal_blocks_of_a_trace_are_equal_text() -> None:
    first, second, third = plan(RunSettings(trace="mine"), TRACE)
    texts = [text_of(talk.turns[0].pieces).split() for talk in (first, second, third)]
    assert [len(text) for text in texts] == [1100, 1024, 600]
    assert texts[0][:1024] == texts[1]
    assert texts[0][:512] == texts[2][:512]
    assert texts[0][512:600] != texts[2][512:600]


def test_a_trace_sets_arrivals_lengths_and_users() -> None:
    talks = plan(RunSettings(trace="mine", speedup=2.0), TRACE)
    assert [talk.at_s for talk in talks] == [0.0, 2.0, 3.0]
    assert [talk.turns[0].max_tokens for talk in talks] == [9, 1, 80]
    assert [talk.user for talk in talks] == ["t1", None, None]


def test_shrinking_keeps_blocks_equal() -> None:
    first, second, third = plan(RunSettings(trace="mine", shrink=8.0), TRACE)
    texts = [text_of(talk.turns[0].pieces).split() for talk in (first, second, third)]
    assert [len(text) for text in texts] == [138, 128, 75]
    assert texts[0][:128] == texts[1]
    assert first.turns[0].max_tokens == 1


def test_a_rate_or_a_concurrency_replaces_the_arrivals_of_a_trace() -> None:
    assert [talk.at_s for talk in plan(RunSettings(trace="mine", concurrency=1), TRACE)] == [None] * 3
    arrivals = [talk.at_s for talk in plan(RunSettings(trace="mine", rate=100.0), TRACE)]
    assert arrivals == [talk.at_s for talk in plan(RunSettings(rate=100.0, requests=3))]


def test_a_number_of_requests_cuts_a_trace_short() -> None:
    assert len(plan(RunSettings(trace="mine", requests=2), TRACE)) == 2
    assert len(plan(RunSettings(trace="mine", requests=50), TRACE)) == 3
