import pytest
import torch

from engine.model.kv_cache import KVCache, bytes_per_block
from tests.engine.model.tiny_llama import tiny_config

CPU = torch.device("cpu")


def test_a_blocks_bytes_are_those_of_its_share_of_the_cache() -> None:
    config = tiny_config()
    cache = KVCache.allocate(config, 10, 4, torch.bfloat16, CPU)
    assert cache.blocks.nbytes == 10 * bytes_per_block(config, 4, torch.bfloat16)


def test_a_block_is_one_piece_of_memory_over_all_layers() -> None:
    cache = KVCache.allocate(tiny_config(), 3, 4, torch.float32, CPU)
    cache.keys[:, 1] = 1
    cache.values[:, 1] = 2
    assert cache.blocks[1].is_contiguous()
    assert cache.blocks[1].min() > 0
    assert cache.blocks[0].abs().max() == cache.blocks[2].abs().max() == 0


def test_the_places_of_a_block_are_the_same_in_each_layer() -> None:
    config = tiny_config()
    cache = KVCache.allocate(config, 3, 4, torch.float32, CPU)
    cache.blocks.normal_()
    for layer in range(config.num_layers):
        panel = 2 * cache.panels_per_block + 1
        assert cache.panels(layer)[panel].equal(cache.keys[layer, 2, 1].flatten())
        assert cache.rows(layer)[panel * 4 + 3].equal(cache.keys[layer, 2, 1, 3])


def test_a_cache_without_room_says_how_much_it_wanted() -> None:
    with pytest.raises(MemoryError, match=r"cpu has no room for 953674\.3 GiB of KV cache"):
        KVCache.allocate(tiny_config(), 10**12, 4, torch.float32, CPU)
