import pytest
import torch

from engine.model.kv_cache import KVCache
from engine.model.tiers import KVTiers
from engine.prefixes import Copy, Medium
from tests.engine.model.tiny_llama import tiny_config

CPU = torch.device("cpu")


def cache(num_blocks: int, dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache.allocate(tiny_config(), num_blocks, 4, dtype, CPU)


def filled(num_blocks: int, dtype: torch.dtype = torch.float32) -> KVCache:
    """Each block has numbers of its own."""
    made = cache(num_blocks, dtype)
    made.blocks.copy_(torch.randn(made.blocks.shape))
    return made


def test_copies_are_made_in_their_order() -> None:
    tiers = KVTiers(filled(3), cache(2))
    first = tiers.device.blocks[0].clone()
    tiers.copy([Copy(0, 1, Medium.CPU), Copy(1, 2, Medium.GPU), Copy(2, 1, Medium.CPU), Copy(1, 0, Medium.GPU)])
    assert tiers.device.blocks[0].equal(first)
    assert tiers.device.blocks[2].equal(first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_read_from_one_engine_can_be_written_into_other_blocks_of_another(dtype: torch.dtype) -> None:
    one, other = KVTiers(filled(5, dtype)), KVTiers(filled(6, dtype))
    before = other.device.blocks[0].clone()
    other.write([1, 5, 3], bytearray(one.read([4, 0, 2])))
    for source, target in [(4, 1), (0, 5), (2, 3)]:
        assert other.device.blocks[target].equal(one.device.blocks[source])
    assert other.device.blocks[0].equal(before)


def test_bytes_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="7 bytes cannot be 1 KV blocks of ours"):
        KVTiers(cache(2)).write([0], bytearray(7))


def test_a_cache_that_was_taken_away_meanwhile_is_told() -> None:
    tiers = KVTiers(filled(2))
    content = bytearray(tiers.read([1]))
    with pytest.raises(ValueError, match="not there any more"):
        KVTiers(KVCache(tiers.device.blocks[:0].clone())).write([1], content)
