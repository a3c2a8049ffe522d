"""What is asked, and when: seeded, and shared blocks are shared prompts."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtest.simulator.profile import profile
from loadtest.simulator.sessions import Sessions, Turn, Users
from loadtest.simulator.text import num_tokens, tokens
from loadtest.simulator.workload import Corpus, Replay, Workload, Writer, corpus, replayed

PROFILE = profile("llama3-8b-h100-tp1")


def written(folder: Path, rows: list[tuple[int, int, list[int]]], name: str = "one") -> str:
    path = folder / f"{name}.jsonl"
    lines = [
        json.dumps({"timestamp": at_ms, "input_length": length, "output_length": 5, "hash_ids": blocks})
        for at_ms, length, blocks in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_rows_become_prompts_of_their_length_that_share_what_they_shared(tmp_path: Path) -> None:
    path = written(tmp_path, [(0, 1200, [1, 2, 3]), (10, 1500, [1, 2, 4]), (20, 700, [9, 2])])
    workload = replayed(Replay((path,)), PROFILE, seed=0)
    assert workload.block_size == 512
    first, second, third = (arrival.ask for arrival in workload.arrivals)
    assert [ask.prompt.num_tokens for ask in (first, second, third)] == [1200, 1500, 700]
    assert tokens(first.text)[:1024] == tokens(second.text)[:1024]
    assert list(first.prompt.block_hashes) == list(second.prompt.block_hashes)[:2]
    # The same block id behind another block is another prefix.
    assert not set(first.prompt.block_hashes) & set(third.prompt.block_hashes)


def test_a_load_does_not_change_what_is_asked_and_a_seed_changes_only_the_jitter(tmp_path: Path) -> None:
    path = written(tmp_path, [(tick * 3000, 600, [tick, row]) for tick in range(4) for row in range(5)])
    one, same, other = (replayed(Replay((path,)), PROFILE, seed) for seed in (0, 0, 1))
    assert one == same
    assert sorted(each.ask.prompt.num_tokens for each in one.arrivals) == [600] * 20
    assert [each.at_s for each in one.arrivals] != [each.at_s for each in other.arrivals]
    assert len({each.at_s for each in one.arrivals}) == 20


def test_traces_are_merged_by_time_and_share_nothing(tmp_path: Path) -> None:
    one = written(tmp_path, [(0, 512, [1]), (2000, 512, [1])], "one")
    two = written(tmp_path, [(1, 512, [1]), (1000, 512, [1])], "two")
    workload = replayed(Replay((one, two)), PROFILE, seed=0)
    assert all(before.at_s <= after.at_s for before, after in pairwise(workload.arrivals))
    assert len({arrival.ask.prompt.block_hashes[0] for arrival in workload.arrivals}) == 2


def test_what_a_router_recorded_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    rows = [
        {"at_s": 1000.0, "prompt_tokens": 40, "output_tokens": 3, "block_size": 16, "block_hashes": [2**64 - 1, 5]},
        {"at_s": 1002.5, "prompt_tokens": 33, "output_tokens": 0, "block_size": 16, "block_hashes": [2**64 - 1, 6]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = replayed(Replay((str(path),)), PROFILE, seed=0)
    first, second = workload.arrivals
    assert workload.block_size == 16
    assert second.at_s - first.at_s == pytest.approx(2.5)
    assert [each.ask.prompt.num_tokens for each in (first, second)] == [40, 33]
    assert first.ask.prompt.block_hashes[0] == second.ask.prompt.block_hashes[0]
    assert first.ask.prompt.block_hashes[1] != second.ask.prompt.block_hashes[1]
    assert [each.ask.num_output_tokens for each in (first, second)] == [3, 1]


def test_seconds_cut_and_copies_are_other_users(tmp_path: Path) -> None:
    path = written(tmp_path, [(0, 512, [1]), (5000, 512, [1]), (50_000, 512, [1])])
    workload = replayed(Replay((path,), seconds=10.0, copies=3), PROFILE, seed=0)
    assert len(workload.arrivals) == 6
    assert len({arrival.ask.prompt.block_hashes[0] for arrival in workload.arrivals}) == 3


def test_a_beginning_left_out_is_not_waited_for(tmp_path: Path) -> None:
    path = written(tmp_path, [(0, 512, [1]), (5000, 513, [1]), (9000, 514, [1]), (50_000, 515, [1])])
    workload = replayed(Replay((path,), begin_s=5.0, seconds=10.0), PROFILE, seed=0)
    assert [(each.at_s, each.ask.prompt.num_tokens) for each in workload.arrivals] == [(0.0, 513), (4.0, 514)]


def test_the_halves_of_each_trace_share_no_row_and_the_second_begins_at_once(tmp_path: Path) -> None:
    one = written(tmp_path, [(row * 3000, 600 + row, [row]) for row in range(7)], "one")
    two = written(tmp_path, [(row * 3000, 900 + row, [row]) for row in range(4)], "two")

    def lengths(**given: Any) -> list[int]:
        return sorted(each.ask.prompt.num_tokens for each in replayed(Replay((one, two), **given), PROFILE, 0).arrivals)

    assert lengths(half="first") == [600, 601, 602, 900, 901]
    assert lengths(half="second") == [603, 604, 605, 606, 902, 903]
    assert sorted(lengths(half="first") + lengths(half="second")) == lengths()
    assert lengths(half="second", seconds=10.0) == [602, 603, 902, 903]
    second = replayed(Replay((one,), half="second"), PROFILE, 0)
    assert second.arrivals[0].at_s == 0.0
    assert second.arrivals[-1].at_s == pytest.approx(9.0)


def test_tenants_have_prefixes_of_their_own(tmp_path: Path) -> None:
    shared = written(tmp_path, [(0, 1024, [1, 2]), (1, 1024, [1, 3])])
    rows = ["t_s,tenant_id,input_tokens,output_tokens", "0,a,1024,5", "1,b,1024,5", "2,a,1024,5", "3,b,512,5"]
    path = tmp_path / "tenants.csv"
    path.write_text("\n".join(rows) + "\n")
    workload = replayed(Replay((str(path),), block_size=512, prefixes_of=shared), PROFILE, seed=0)
    a, b, a_again, b_again = (list(arrival.ask.prompt.block_hashes) for arrival in workload.arrivals)
    assert a[0] == a_again[0]
    assert a[1] != a_again[1]
    assert b[0] == b_again[0] != a[0]


def test_a_corpus_asks_every_question_before_any_comes_again() -> None:
    plan = Corpus(prefixes=3, prefix_tokens=1024, questions=2, question_tokens=100, output_tokens=7, requests=18)
    workload = corpus(plan, PROFILE, seed=1)
    texts = [arrival.ask.text for arrival in workload.arrivals]
    assert all(len(set(texts[start : start + 6])) == 6 for start in (0, 6, 12))
    assert {num_tokens(text) for text in texts} == {1124}
    assert {arrival.ask.num_output_tokens for arrival in workload.arrivals} == {7}


def users(kind: str, max_tokens: int = 131_072) -> Users:
    return Users(Sessions(kind=kind, requests=100, max_tokens=max_tokens), Writer(PROFILE, 512), seed=0)


@pytest.mark.parametrize("kind", ["interactive-chat", "code-generation", "deep-research"])
def test_each_turn_begins_with_all_that_was_said_before_the_answer_included(kind: str) -> None:
    turns = [turn for number in range(20) for turn in pairs(users(kind).session(number))]
    assert turns
    for before, after in turns:
        said = (*before.ask.text, (before.ask.answer_token, before.ask.num_output_tokens))
        assert after.ask.text[: len(said)] == said
        assert after.after_s > 0


def test_sessions_stay_within_the_context_and_share_the_system_prompt() -> None:
    asks = [turn.ask for number in range(30) for turn in users("code-generation", 50_000).session(number)]
    assert max(ask.prompt.num_tokens + ask.num_output_tokens for ask in asks) <= 50_000
    assert len({ask.text[0] for ask in asks}) == 1
    assert len({ask.number for ask in asks}) == len(asks)


def test_a_session_is_the_same_whenever_it_is_taken() -> None:
    one, other = users("deep-research"), users("deep-research")
    list(other.session(7))
    lengths = [[(turn.ask.prompt.num_tokens, turn.after_s) for turn in each.session(3)] for each in (one, other)]
    assert lengths[0] == lengths[1]


def pairs(session: Iterator[Turn]) -> list[tuple[Turn, Turn]]:
    return list(pairwise(session))


def test_a_workload_knows_how_many_come() -> None:
    assert Workload((), 512).num_requests == 0
    assert users("interactive-chat").num_requests == 100
