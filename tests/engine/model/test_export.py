from pathlib import Path

import pytest
import torch

from engine.model.checkpoint import open_checkpoint
from engine.model.config import ModelConfig
from engine.model.export import export, huggingface_config
from engine.model.fields import ModelError
from engine.model.weights import weight_shapes
from engine.tokenizer import Tokenizer
from tests.engine.model import gguf_writer as writer
from tests.engine.model.test_checkpoint import gguf_tensors, random_weights
from tests.engine.model.test_config import GGUF, LLAMA
from tests.engine.model.tiny_tokenizer import METADATA


def test_a_model_is_the_same_after_it_was_written_as_a_folder(tmp_path: Path) -> None:
    file = writer.write_gguf(tmp_path / "m.gguf", GGUF | METADATA, gguf_tensors(random_weights()))
    export(file, tmp_path / "folder")
    before, after = open_checkpoint(file), open_checkpoint(tmp_path / "folder")
    assert after.config == before.config
    assert all(torch.equal(before.read(name), after.read(name)) for name in weight_shapes(before.config))
    tokenizers = Tokenizer.load(file), Tokenizer.load(tmp_path / "folder")
    assert tokenizers[0].encode("ab ba") == tokenizers[1].encode("ab ba")


def test_a_config_survives_the_way_through_its_fields() -> None:
    config = ModelConfig.from_huggingface(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert ModelConfig.from_huggingface(huggingface_config(config)) == config


def test_what_a_folder_cannot_tell_is_refused(tmp_path: Path) -> None:
    config = ModelConfig.from_gguf(GGUF, has_output_weight=False, has_rope_factors=True)
    with pytest.raises(ModelError, match="rope_freqs"):
        huggingface_config(config)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="is a Hugging Face folder already"):
        export(tmp_path, tmp_path / "other")
