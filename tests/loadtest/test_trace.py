import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.trace import Row, load_trace, shipped_traces

ROWS = {
    "arena_adapters_vtc": 713,
    "azure_llm_2023_code": 5353,
    "azure_llm_2023_conv": 9739,
    "mooncake_conversation": 5606,
    "mooncake_synthetic": 1925,
    "servegen_tenants_mlarge": 73502,
    "toolagent_like_synth": 11643,
}


def test_every_shipped_trace_is_known() -> None:
    assert list(shipped_traces()) == sorted(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_shipped_trace_loads(name: str) -> None:
    trace = load_trace(name, seed=0)
    arrivals = [row.at_s for row in trace.rows]
    assert (trace.name, len(trace.rows)) == (name, ROWS[name])
    assert arrivals == sorted(arrivals)
    assert 0 <= arrivals[0] < 3
    assert 250 < arrivals[-1] < 3700
    assert (trace.block_size is None) == (not trace.rows[0].block_ids)


@pytest.mark.parametrize("name", ["mooncake_conversation", "toolagent_like_synth"])
def test_ticked_stamps_are_spread_by_seeded_jitter(name: str) -> None:
    trace = load_trace(name, seed=0)
    per_stamp = Counter(row.at_s for row in trace.rows)
    assert max(per_stamp.values()) == 1
    seconds_in_tick = Counter(int(row.at_s % 3) for row in trace.rows)
    assert min(seconds_in_tick.values()) > 0.3 * len(trace.rows)
    assert load_trace(name, seed=0) == trace
    assert load_trace(name, seed=1) != trace


def test_true_stamps_are_left_alone() -> None:
    assert load_trace("mooncake_synthetic", seed=0) == load_trace("mooncake_synthetic", seed=1)
    assert load_trace("mooncake_synthetic", seed=0).rows[2].at_s == pytest.approx(0.04)


def test_tenants_and_adapters_become_users() -> None:
    assert load_trace("arena_adapters_vtc", seed=0).rows[0].tenant == "adapter-13"
    assert load_trace("servegen_tenants_mlarge", seed=0).rows[0].tenant == "tenant-15"


def test_what_a_router_recorded_loads_with_its_block_size(tmp_path: Path) -> None:
    row = {"at_s": 1e9 + 0.5, "prompt_tokens": 33, "output_tokens": 4, "block_size": 16, "block_hashes": [2**64 - 1, 7]}
    path = tmp_path / "recorded.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row | {'at_s': 1e9, 'block_hashes': []})}\n")
    trace = load_trace(str(path), seed=0)
    assert (trace.block_size, trace.rows) == (16, (Row(0.0, 33, 4), Row(0.5, 33, 4, (2**64 - 1, 7))))


@pytest.mark.parametrize(("size", "said"), [(32, "is 32 here and 16 above"), (0, "not a whole number"), ("x", "'x'")])
def test_a_recorded_trace_has_one_block_size(tmp_path: Path, size: object, said: str) -> None:
    row = {"at_s": 0.0, "prompt_tokens": 33, "output_tokens": 4, "block_size": 16, "block_hashes": []}
    path = tmp_path / "recorded.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row | {'block_size': size})}\n")
    with pytest.raises(UsageError, match=f"line 2: block_size .*{said}"):
        load_trace(str(path), seed=0)


def test_a_file_of_a_known_format_loads_plain_or_zipped_and_is_sorted(tmp_path: Path) -> None:
    text = "t_s,context_tokens,generated_tokens\n7.5,30,3\n5.0,10,1\n"
    plain, zipped = tmp_path / "own.csv", tmp_path / "own.csv.gz"
    plain.write_text(text)
    zipped.write_bytes(gzip.compress(text.encode()))
    trace = load_trace(str(plain), seed=0)
    assert trace.rows == (Row(0.0, 10, 1), Row(2.5, 30, 3))
    assert load_trace(str(zipped), seed=0) == trace


def test_bailian_traces_count_seconds_and_small_blocks(tmp_path: Path) -> None:
    row = {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 2.5,
        "input_length": 20,
        "output_length": 4,
        "type": "text",
        "turn": 1,
        "hash_ids": [5, 6],
    }
    path = tmp_path / "bailian.jsonl"
    path.write_text(json.dumps(row | {"timestamp": 1.0}) + "\n\n" + json.dumps(row) + "\n")
    trace = load_trace(str(path), seed=0)
    assert trace.block_size == 16
    assert [row.at_s for row in trace.rows] == [0.0, 1.5]


GOOD_LINE = '{"timestamp":0,"input_length":5,"output_length":5,"hash_ids":[1]}\n'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", GOOD_LINE + "{oops\n", "line 2: not JSON"),
        ("a.jsonl", GOOD_LINE + "[1]\n", "line 2: not a JSON object"),
        ("a.jsonl", GOOD_LINE + '\n{"timestamp":1}\n', "line 3: input_length is missing"),
        ("a.jsonl", GOOD_LINE.replace("5", '"x"', 1), "line 1: input_length is not a number: 'x'"),
        ("a.jsonl", GOOD_LINE.replace("5", "-5", 1), "line 1: input_length must be zero or more: -5"),
        ("a.jsonl", GOOD_LINE.replace("5", "NaN", 1), "line 1: input_length must be zero or more: nan"),
        ("a.jsonl", GOOD_LINE.replace("[1]", "1"), "line 1: hash_ids is not a list of whole numbers"),
        ("a.jsonl", GOOD_LINE.replace("[1]", '["a"]'), "line 1: hash_ids is not a list of whole numbers"),
        ("a.jsonl", '{"prompt":1}\n', "line 1: columns prompt are of no known trace format"),
        ("a.jsonl", "", "holds no rows"),
        ("a.csv", "t_s,context_tokens,generated_tokens\n1,2,3\n1,,3\n", "line 3: context_tokens is missing"),
        ("a.csv", "t_s,context_tokens,generated_tokens\n1,2\n", "line 2: generated_tokens is missing"),
        ("a.csv", "t_s,context_tokens,generated_tokens\n1,2,x\n", "line 2: generated_tokens is not a number"),
        ("a.csv", "when,what\n1,2\n", "line 2: columns when, what are of no known trace format"),
        ("a.csv", "t_s,context_tokens,generated_tokens\n", "holds no rows"),
        ("a.jsonl.gz", "not gzip", "cannot read"),
        ("a.csv", "t_s,context_tokens,generated_tokens\n1,2,3,4\n", "line 2: more cells than columns"),
    ],
)
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_trace(str(path), seed=0)
    assert str(caught.value).startswith("--trace: ")
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"t_s,\xff\n")
    with pytest.raises(UsageError, match="cannot read"):
        load_trace(str(path), seed=0)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean mooncake_synthetic\?"):
        load_trace("mooncake_syntetic", seed=0)
    with pytest.raises(UsageError, match="shipped are arena_adapters_vtc"):
        load_trace("zzz", seed=0)
