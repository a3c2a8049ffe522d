"""Requests as parts of one call, and its answer taken apart again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Surface
from router.errors import BadAnswer
from router.upstream.parts import MAX_PART_BYTES, Part, apportion, joined, part_of, split


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def embedding(prompt: object, **fields: object) -> Part:
    part = part_of(Surface.EMBEDDINGS, body(input=prompt, **fields))
    assert part is not None
    return part


def completion(prompt: object, **fields: object) -> Part:
    part = part_of(Surface.COMPLETIONS, body(prompt=prompt, **fields))
    assert part is not None
    return part


def told(parts: list[Part], answer: object, *num_tokens: int | None) -> list[dict[str, Any]]:
    sizes = num_tokens or [None] * len(parts)
    return [json.loads(each) for each in split(parts, list(sizes), json.dumps(answer).encode())]


def test_prompts_of_equal_requests_are_joined_and_all_else_keeps_its_bytes() -> None:
    parts = [embedding("a", dimensions=4), embedding(["b"], dimensions=4), embedding("ä\n", dimensions=4)]
    assert len({part.others for part in parts}) == 1
    assert json.loads(joined(parts)) == {"input": ["a", "b", "ä\n"], "model": "m", "dimensions": 4}
    exact = part_of(Surface.EMBEDDINGS, b'{"input":"a","model":"m","x":1.50}')
    assert exact is not None
    assert b'"x":1.50' in joined([exact, exact])


def test_token_ids_are_joined_with_token_ids() -> None:
    parts = [completion([1, 2]), completion([[3]])]
    assert all(part.is_tokens for part in parts)
    assert json.loads(joined(parts))["prompt"] == [[1, 2], [3]]
    assert not completion("a").is_tokens


def test_the_order_of_fields_does_not_matter_and_their_values_do() -> None:
    first = part_of(Surface.EMBEDDINGS, b'{"input":"a","model":"m","user":"u"}')
    second = part_of(Surface.EMBEDDINGS, b'{"user":"u","model":"m","input":"b"}')
    third = part_of(Surface.EMBEDDINGS, b'{"user":"v","model":"m","input":"b"}')
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.others == second.others != third.others


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (Surface.CHAT, {"messages": []}),
        (Surface.EMBEDDINGS, {"input": ["a", "b"]}),
        (Surface.EMBEDDINGS, {"input": [[1], [2]]}),
        (Surface.EMBEDDINGS, {"input": "a" * MAX_PART_BYTES}),
        (Surface.COMPLETIONS, {"prompt": "a", "stream": True}),
        (Surface.COMPLETIONS, {"prompt": "a", "n": 2}),
        (Surface.COMPLETIONS, {"prompt": "a", "best_of": 2}),
        (Surface.COMPLETIONS, {"prompt": "a", "kv_transfer_params": {}}),
    ],
)
def test_what_is_not_one_answer_to_one_prompt_goes_alone(path: str, fields: dict[str, object]) -> None:
    assert part_of(path, body(**fields)) is None
    plain = part_of(Surface.COMPLETIONS, body(prompt="a", stream=False, n=1, best_of=None))
    assert plain is not None


def test_an_answer_is_split_by_index_and_each_has_the_first() -> None:
    parts = [embedding(text) for text in "abc"]
    rows = [{"object": "embedding", "index": index, "embedding": [float(index), 0.5]} for index in (2, 0, 1)]
    answer = {"object": "list", "id": "e", "model": "m", "data": rows, "usage": {"prompt_tokens": 6, "total_tokens": 6}}
    found = told(parts, answer, 1, 2, 3)
    assert [each["data"][0]["embedding"][0] for each in found] == [0.0, 1.0, 2.0]
    assert [each["data"][0]["index"] for each in found] == [0, 0, 0]
    assert [each["usage"] for each in found] == [{"prompt_tokens": n, "total_tokens": n} for n in (1, 2, 3)]
    assert [each["id"] for each in found] == ["e-0", "e-1", "e-2"]
    assert all((each["object"], each["model"], len(each["data"])) == ("list", "m", 1) for each in found)


def test_base64_vectors_and_unknown_fields_keep_their_bytes() -> None:
    parts = [embedding(text, encoding_format="base64") for text in "ab"]
    raw = b'{"data":[{"index":0,"embedding":"AAAA","x":1.0},{"index":1,"embedding":"BBBB"}],"y":2.50}'
    first, second = split(parts, [None, None], raw)
    assert b'"embedding":"AAAA"' in first
    assert b'"x":1.0' in first
    assert all(b'"y":2.50' in each and b"usage" not in each for each in (first, second))


def test_special_tokens_are_shared_evenly_where_each_prompt_has_as_many() -> None:
    parts = [embedding(text) for text in "ab"]
    answer = {"data": [{"index": 0}, {"index": 1}], "usage": {"prompt_tokens": 16, "total_tokens": 16}}
    assert [each["usage"]["prompt_tokens"] for each in told(parts, answer, 2, 10)] == [4, 12]
    assert sum(each["usage"]["prompt_tokens"] for each in told(parts, answer, 2, None)) == 16


def test_without_a_tokenizer_prompts_share_by_their_ids_or_their_length() -> None:
    ids = [embedding(each) for each in ([1, 2, 3], [400_000])]
    answer = {"data": [{"index": 0}, {"index": 1}], "usage": {"prompt_tokens": 4, "total_tokens": 4}}
    assert [each["usage"]["prompt_tokens"] for each in told(ids, answer)] == [3, 1]
    texts = [embedding("x"), embedding("xxx")]
    assert [each["usage"]["prompt_tokens"] for each in told(texts, answer)] == [1, 3]


def test_a_completion_that_was_cut_at_its_limit_used_the_limit_and_others_the_rest() -> None:
    parts = [completion(text, max_tokens=8) for text in "abc"]
    choices = [
        {"index": 0, "text": "x" * 40, "finish_reason": "length"},
        {"index": 1, "text": "y" * 30, "finish_reason": "stop"},
        {"index": 2, "text": "z" * 10, "finish_reason": "stop"},
    ]
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 12,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 6},
    }
    found = [each["usage"] for each in told(parts, {"choices": choices, "usage": usage}, 3, 3, 3)]
    assert [each["completion_tokens"] for each in found] == [8, 3, 1]
    assert [each["total_tokens"] for each in found] == [11, 6, 4]
    assert [each["prompt_tokens_details"]["cached_tokens"] for each in found] == [2, 2, 2]


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [{"index": 0}]},
        {"data": [{"index": 0}, {"index": 0}]},
        {"data": [{"index": 0}, {"index": 7}]},
        {"data": [{"index": "x"}, {"index": 1}]},
        {"data": {}},
        {"choices": []},
        [],
    ],
)
def test_an_answer_that_is_not_one_for_each_is_none(answer: object) -> None:
    with pytest.raises(BadAnswer):
        split([embedding("a"), embedding("b")], [None, None], json.dumps(answer).encode())


def test_an_answer_that_is_no_json_is_none() -> None:
    with pytest.raises(BadAnswer):
        split([embedding("a"), embedding("b")], [None, None], b"oops")


@given(
    total=st.integers(0, 10**6),
    lengths=st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["stop", "length"])), min_size=2, max_size=20),
)
def test_the_parts_of_what_was_used_are_the_whole(total: int, lengths: list[tuple[int, str]]) -> None:
    parts = [completion("p" * length, max_tokens=9) for length, _ in lengths]
    choices = [
        {"index": index, "text": "t" * length, "finish_reason": reason}
        for index, (length, reason) in enumerate(lengths)
    ]
    usage = {"prompt_tokens": total, "completion_tokens": total // 2, "total_tokens": total + total // 2}
    found = [each["usage"] for each in told(parts, {"choices": choices, "usage": usage})]
    for name, whole in usage.items():
        assert sum(each[name] for each in found) == whole
        assert all(each[name] >= 0 for each in found)


@given(total=st.integers(0, 10**6), weights=st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_shares_are_within_one_of_their_ratio_and_sum_to_the_total(total: int, weights: list[int]) -> None:
    shares = apportion(total, weights)
    assert sum(shares) == total
    scale = sum(weights)
    if scale:
        assert all(abs(share - total * weight / scale) <= 1 for share, weight in zip(shares, weights, strict=True))
