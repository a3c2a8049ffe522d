import torch

from engine.model.checkpoint import Checkpoint
from engine.model.fingerprint import fingerprint
from tests.engine.model.tiny_llama import in_memory, tiny_config, tiny_weights


def tiny(scale: float = 1.0, num_kv_heads: int = 2) -> Checkpoint:
    config = tiny_config(num_kv_heads=num_kv_heads)
    weights = tiny_weights(config)
    return in_memory(config, weights | {"model.norm.weight": weights["model.norm.weight"] * scale})


def test_the_same_model_has_the_same_name_and_any_other_has_another() -> None:
    name = fingerprint(tiny(), torch.float32, 16)
    assert name == fingerprint(tiny(), torch.float32, 16)
    others = [
        fingerprint(tiny(scale=1.001), torch.float32, 16),
        fingerprint(tiny(num_kv_heads=4), torch.float32, 16),
        fingerprint(tiny(), torch.bfloat16, 16),
        fingerprint(tiny(), torch.float32, 32),
    ]
    assert len({name, *others}) == 5
    assert name.startswith("llama ")
    assert name.endswith(" float32 blocks of 16")
