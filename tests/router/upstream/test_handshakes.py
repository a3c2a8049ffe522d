"""Bodies of prefill and decode, in the forms that vLLM and SGLang document."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.core import Surface
from router.upstream.handshakes import bootstrapped, can_split, first_body, new_room, second_body
from tests.router.nouns import make_demand

# As vLLM's NixlConnector answers a prefill.
VLLM_PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[5, 6, 7]],
    "remote_engine_id": "7c1d3e0b-9a51-4c80-8c8e-6a2f6f1b0d11",
    "remote_request_id": "cmpl-1",
    "remote_host": "10.0.0.7",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 48,
    "transfer_mode": "read",
}


def asked(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "Hello", "temperature": 0.30, **fields}).encode()


def split(body: bytes, surface: Surface | str = Surface.COMPLETIONS) -> bool:
    return can_split(make_demand(body=body, surface=surface))


def test_the_first_is_asked_for_one_token_and_to_keep_the_kv() -> None:
    body = asked(stream=True, stream_options={"include_usage": True}, max_tokens=100, min_tokens=5, seed=7)
    assert json.loads(first_body(body)) == {
        "model": "m",
        "prompt": "Hello",
        "temperature": 0.3,
        "seed": 7,
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }


def test_of_two_names_for_a_length_one_is_left() -> None:
    fields = json.loads(first_body(asked(max_completion_tokens=50)))
    assert fields["max_tokens"] == 1
    assert "max_completion_tokens" not in fields


def test_values_that_are_not_ours_keep_their_bytes() -> None:
    assert b'"temperature":0.30' in first_body(asked().replace(b" ", b"").replace(b"0.3", b"0.30"))


def test_the_second_is_told_where_the_first_has_put_it() -> None:
    answer = json.dumps({"id": "cmpl-1", "choices": [], "kv_transfer_params": VLLM_PARAMS}).encode()
    fields = json.loads(second_body(asked(stream=True, max_tokens=100), answer))
    assert fields.pop("kv_transfer_params") == VLLM_PARAMS
    assert fields == json.loads(asked(stream=True, max_tokens=100))


def test_a_recorded_exchange_with_two_real_servers_of_vllm_is_what_we_say() -> None:
    said = json.loads(Path("tests/fixtures/vllm-0.32-cpu/nixl_exchange.json").read_text())
    own = {name: value for name, value in said["second_request"].items() if name != "kv_transfer_params"}
    body, answer = json.dumps(own).encode(), json.dumps(said["first_answer"]).encode()
    assert json.loads(first_body(body)) == said["first_request"]
    assert json.loads(second_body(body, answer)) == said["second_request"]
    params = said["first_answer"]["kv_transfer_params"]
    assert (params["do_remote_prefill"], params["remote_num_tokens"]) == (True, 601)
    assert said["second_answer"]["usage"]["prompt_tokens"] == params["remote_num_tokens"]
    assert said["second_answer"]["choices"][0]["text"].startswith("\nThe quick brown fox")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"{}", "no `kv_transfer_params`"),
        (b'{"kv_transfer_params": null}', "no `kv_transfer_params`"),
        (b'{"kv_transfer_params": 7}', "no JSON object"),
        (b"not json", "no JSON object"),
        (b"\xff", "no JSON object"),
    ],
)
def test_an_answer_that_says_nothing_of_kv_is_an_error(answer: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        second_body(asked(), answer)


def test_sglangs_halves_get_the_same_room_besides_what_the_client_sent() -> None:
    body = asked(stream=True, max_tokens=100)
    fields = json.loads(bootstrapped(body, "10.0.0.7", None, 2**62))
    room = {"bootstrap_host": "10.0.0.7", "bootstrap_port": 8998, "bootstrap_room": 2**62}
    assert fields == json.loads(body) | room
    assert json.loads(bootstrapped(body, "h", 9000, 1))["bootstrap_port"] == 9000


def test_rooms_are_63_bits_and_not_the_same() -> None:
    rooms = {new_room() for _ in range(1000)}
    assert len(rooms) == 1000
    assert all(0 <= room < 2**63 for room in rooms)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"best_of": 3},
        {"echo": True},
        {"prompt_logprobs": 0},
        {"prompt": ["a", "b"]},
        {"prompt": [[1, 2], [3]]},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"bootstrap_room": 7},
        {"n": "two"},
    ],
)
def test_what_is_more_than_one_answer_or_led_by_its_client_is_not_split(fields: dict[str, Any]) -> None:
    assert not split(asked(**fields))


@pytest.mark.parametrize("fields", [{}, {"n": 1, "best_of": 1, "echo": False}, {"prompt": [1, 2, 3]}, {"prompt": ""}])
def test_one_prompt_with_one_answer_is_split(fields: dict[str, Any]) -> None:
    assert split(asked(**fields))
    assert split(json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode(), Surface.CHAT)


def test_other_routes_are_not_split() -> None:
    assert not split(asked(), Surface.EMBEDDINGS)
    assert not split(asked(), "/rerank")
