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
    for tensor in (made.keys, made.values):
        tensor.copy_(torch.randn(tensor.shape))
    return made


def test_copies_are_made_in_their_order() -> None:
    tiers = KVTiers(filled(3), cache(2))
    first = tiers.device.keys[:, 0].clone(), tiers.device.values[:, 0].clone()
    tiers.copy([Copy(0, 1, Medium.CPU), Copy(1, 2, Medium.GPU), Copy(2, 1, Medium.CPU), Copy(1, 0, Medium.GPU)])
    for block in (0, 2):
        assert tiers.device.keys[:, block].equal(first[0])
        assert tiers.device.values[:, block].equal(first[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_read_from_one_engine_can_be_written_into_other_blocks_of_another(dtype: torch.dtype) -> None:
    one, other = KVTiers(filled(5, dtype)), KVTiers(filled(6, dtype))
    content = bytearray(one.read([4, 0, 2]))
    assert len(content) == 3 * one.bytes_per_block
    before = other.device.keys[:, 0].clone()
    other.write([1, 5, 3], content)
    for source, target in [(4, 1), (0, 5), (2, 3)]:
        assert other.device.keys[:, target].equal(one.device.keys[:, source])
        assert other.device.values[:, target].equal(one.device.values[:, source])
    assert other.device.keys[:, 0].equal(before)


def test_bytes_of_another_size_are_refused() -> None:
    tiers = KVTiers(cache(2))
    with pytest.raises(ValueError, match="7 bytes for 1 KV blocks of"):
        tiers.write([0], bytearray(7))
