"""`python -m engine.model.export FILE.gguf FOLDER`: a Hugging Face folder, for runtimes that read no GGUF.

Knows what such a folder holds. Must not know where models come from or how they compute. The weights are float32, so
that nothing of them is lost.
"""

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from engine.model.checkpoint import Checkpoint, open_checkpoint
from engine.model.config import ModelConfig, Rope
from engine.model.fields import ModelError
from engine.model.gguf import GgufFile, find_gguf
from engine.model.tokenizer_files import TokenizerFiles, read_gguf
from engine.model.weights import weight_shapes


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python -m engine.model.export FILE.gguf FOLDER", file=sys.stderr)
        return 2
    try:
        export(Path(sys.argv[1]), Path(sys.argv[2]))
    except (ModelError, OSError) as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1
    return 0


def export(model: Path, folder: Path) -> None:
    """Raises ModelError for a model that is not a GGUF, or whose rope only GGUF can tell; OSError."""
    gguf = find_gguf(model)
    if gguf is None:
        raise ModelError(f"{model}: is a Hugging Face folder already")
    checkpoint = open_checkpoint(gguf)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", huggingface_config(checkpoint.config))
    _write_tokenizer(read_gguf(GgufFile.open(gguf).metadata), folder)
    _write_weights(checkpoint, folder / "model.safetensors")


def huggingface_config(config: ModelConfig) -> dict[str, Any]:
    """config.json's fields. Raises ModelError for rope factors, which it has no place for."""
    if config.rope.has_factors:
        raise ModelError("tensor rope_freqs.weight: cannot be told in a config.json")
    family = config.variant.huggingface
    class_name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    fields = {
        "architectures": [f"{class_name}ForCausalLM"],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": "float32",
    }
    return fields | _rope_fields(config.rope)


def _rope_fields(rope: Rope) -> dict[str, Any]:
    linear = {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": rope.linear_factor}}
    return {"rope_theta": rope.theta} | (linear if rope.linear_factor != 1 else {})


def _write_tokenizer(files: TokenizerFiles, folder: Path) -> None:
    files.tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": files.bos_token,
        "eos_token": files.eos_token,
        "chat_template": files.chat_template,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_weights(checkpoint: Checkpoint, file: Path) -> None:
    tensors = {name: checkpoint.read(name).float() for name in weight_shapes(checkpoint.config)}
    save_file(tensors, file, metadata={"format": "pt"})


def _write_json(file: Path, fields: dict[str, Any]) -> None:
    file.write_text(json.dumps(fields, indent=2), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
