from typing import Any

import pytest

from engine.blocks import BlockPool
from engine.kv_wire import KvTransferParams
from engine.prefixes import NO_SCOPE, Cleared, Medium, Removed, Stored
from engine.server import messages
from engine.server.errors import ApiError
from pointsman.blockhash import block_hashes
from pointsman.v1 import common_pb2, engine_pb2


def held(num_chains: int, num_blocks: int) -> list[Stored]:
    """So many chains of so many blocks of one token."""
    pool = BlockPool(num_chains * num_blocks, 1)
    chains = []
    for chain in range(num_chains):
        tokens = list(range(chain * 1000, chain * 1000 + num_blocks))
        table = pool.allocate(num_blocks)
        for index, block_hash in enumerate(block_hashes(tokens, 1)):
            pool.publish(table, index, block_hash, tokens, NO_SCOPE)
        prefixes = [prefix for prefix in pool.held(Medium.GPU) if prefix.block in table]
        chains.append(Stored(prefixes, Medium.GPU))
    return chains


def test_a_large_snapshot_comes_in_parts_and_says_which_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_SNAPSHOT_BLOCKS", 7)
    parts = [event.snapshot for event in messages.snapshot(held(5, 3), 16)]
    assert [len(part.chains) for part in parts] == [2, 2, 1]
    assert [part.is_last for part in parts] == [False, False, True]
    assert all(part.block_size == 16 for part in parts)


def test_a_snapshot_of_nothing_is_one_empty_part() -> None:
    (event,) = messages.snapshot([], 16)
    assert (list(event.snapshot.chains), event.snapshot.is_last) == ([], True)


def test_each_change_is_told_with_its_tier() -> None:
    (stored,) = held(1, 2)
    told = messages.kv_event(Stored(stored.prefixes[1:], Medium.CPU)).stored
    assert (told.parent_hash, list(told.block_hashes)) == (stored.prefixes[0].hash, [stored.prefixes[1].hash])
    assert told.medium == engine_pb2.MEDIUM_HOST
    assert not messages.kv_event(stored).stored.HasField("parent_hash")
    removed = messages.kv_event(Removed([1, 2], Medium.GPU)).removed
    assert (list(removed.block_hashes), removed.medium) == ([1, 2], engine_pb2.MEDIUM_DEVICE)
    assert messages.kv_event(Cleared()).WhichOneof("event") == "cleared"


def test_options_that_are_not_set_leave_all_of_the_context() -> None:
    asked = messages.options(common_pb2.Sampling(), room=50)
    assert (asked.max_tokens, asked.temperature, asked.seed) == (50, None, None)


def test_options_are_those_of_a_completion() -> None:
    sampling = common_pb2.Sampling(
        max_tokens=3, min_tokens=2, temperature=0.5, top_p=0.25, top_k=4, min_p=0.125, seed=2**64 - 1, ignore_eos=True
    )
    sampling.stop.append("end")
    sampling.stop_token_ids.append(7)
    sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty = 0.5, -0.5, 1.5
    sampling.logit_bias[9] = -2.0
    asked = messages.options(sampling, room=50)
    assert (asked.frequency_penalty, asked.presence_penalty, asked.repetition_penalty) == (0.5, -0.5, 1.5)
    assert asked.logit_bias == {9: -2.0}
    assert (asked.max_tokens, asked.min_tokens, asked.temperature, asked.top_p) == (3, 2, 0.5, 0.25)
    assert (asked.top_k, asked.min_p, asked.seed, asked.ignore_eos) == (4, 0.125, -1, True)
    assert (asked.stop, asked.stop_token_ids) == (["end"], [7])


@pytest.mark.parametrize(("options", "name"), [({"top_p": 2}, "top_p"), ({"min_p": -1}, "min_p")])
def test_an_option_out_of_range_is_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ApiError, match=name):
        messages.options(common_pb2.Sampling(**options), room=50)


def test_where_kv_is_goes_there_and_back() -> None:
    params = KvTransferParams(
        do_remote_prefill=True, remote_engine_id="e", remote_block_ids=[0, 5], remote_host="h", remote_port=1
    )
    asked = engine_pb2.GenerateRequest(kv_transfer=messages.kv_transfer(params))
    assert messages.transfer_params(asked) == params
    assert messages.transfer_params(engine_pb2.GenerateRequest()) == KvTransferParams()
