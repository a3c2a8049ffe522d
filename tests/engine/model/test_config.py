from pathlib import Path

import pytest

from engine.model import variants
from engine.model.config import Llama3Scaling, ModelConfig, Rope
from engine.model.fields import ModelError, read_json_object

LLAMA: dict[str, object] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GGUF: dict[str, object] = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.vocab_size": 40,
    "llama.context_length": 128,
    "llama.rope.freq_base": 100000.0,
    "llama.rope.dimension_count": 16,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def test_both_formats_give_the_same_config() -> None:
    config = ModelConfig.from_huggingface(LLAMA)
    assert config == ModelConfig.from_gguf(GGUF, has_output_weight=False)
    assert config == ModelConfig(
        variant=variants.of_huggingface("llama"),
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=40,
        max_position=128,
        rope=Rope(100000.0),
        rms_norm_eps=1e-5,
        tie_embeddings=True,
        eos_token_ids=(2,),
        bos_token_id=1,
        windows=(None, None),
    )


def test_fields_that_are_left_out_have_the_format_s_defaults() -> None:
    optional = {
        "num_key_value_heads",
        "rope_theta",
        "rms_norm_eps",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
    }
    config = ModelConfig.from_huggingface({key: value for key, value in LLAMA.items() if key not in optional})
    assert (config.num_kv_heads, config.rope, config.rms_norm_eps) == (4, Rope(10_000.0), 1e-6)
    assert (config.tie_embeddings, config.bos_token_id, config.eos_token_ids) == (False, None, ())
    without_size = {key: value for key, value in GGUF.items() if key != "llama.vocab_size"}
    assert (
        ModelConfig.from_gguf(without_size | {"tokenizer.ggml.tokens": ("a", "b")}, has_output_weight=True).vocab_size
        == 2
    )


def test_mistral_looks_back_over_its_window() -> None:
    mistral = LLAMA | {"model_type": "mistral", "head_dim": 32}
    assert ModelConfig.from_huggingface(mistral | {"sliding_window": 7}).windows == (7, 7)
    assert ModelConfig.from_huggingface(mistral | {"sliding_window": None}).windows == (None, None)
    assert ModelConfig.from_huggingface(mistral).windows == (4096, 4096)
    assert ModelConfig.from_gguf(GGUF | {"llama.attention.sliding_window": 9}, has_output_weight=True).windows == (9, 9)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_has_a_window_in_its_later_layers_if_it_says_so(family: str) -> None:
    qwen = LLAMA | {"model_type": family, "sliding_window": 7, "max_window_layers": 1}
    assert ModelConfig.from_huggingface(qwen).windows == (None, None)
    assert ModelConfig.from_huggingface(qwen | {"use_sliding_window": False}).windows == (None, None)
    assert ModelConfig.from_huggingface(qwen | {"use_sliding_window": True}).windows == (None, 7)


def test_families_differ_in_biases_and_norms_of_heads() -> None:
    found = {name: ModelConfig.from_huggingface(LLAMA | {"model_type": name}).variant for name in ("qwen2", "qwen3")}
    assert (found["qwen2"].has_qkv_bias, found["qwen2"].has_qk_norm) == (True, False)
    assert (found["qwen3"].has_qkv_bias, found["qwen3"].has_qk_norm) == (False, True)


LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_scaled_rope_is_read(field: str) -> None:
    scaled = ModelConfig.from_huggingface(LLAMA | {field: LLAMA_3})
    assert scaled.rope == Rope(100000.0, llama3=Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert ModelConfig.from_huggingface(LLAMA | {field: {"type": "linear", "factor": 2.0}}).rope.linear_factor == 2.0
    linear = GGUF | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert ModelConfig.from_gguf(linear, has_output_weight=False).rope.linear_factor == 2.0
    assert ModelConfig.from_gguf(GGUF, has_output_weight=False, has_rope_factors=True).rope.has_factors


def test_rope_theta_is_read_where_newer_files_put_it() -> None:
    old = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    config = ModelConfig.from_huggingface(old | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert config.rope.theta == 5e5


def test_end_tokens_of_all_files_are_joined() -> None:
    config = ModelConfig.from_huggingface(LLAMA | {"eos_token_id": [2, 3]}, {"eos_token_id": [3, 5]})
    assert config.eos_token_ids == (2, 3, 5)
    ends = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 2}
    assert ModelConfig.from_gguf(GGUF | ends, has_output_weight=False).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"model_type": "gemma"}, r"model_type: 'gemma' is not supported; supported: llama, mistral, qwen2, qwen3"),
        ({"sliding_window": 7}, "sliding_window = 7 is not supported"),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling: low_freq_factor is missing"),
        (
            {"rope_scaling": LLAMA_3 | {"high_freq_factor": 1.0}},
            r"high_freq_factor must be above low_freq_factor \(1\)",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: type = 'dynamic'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling: factor must be a positive number"),
        ({"rope_scaling": 8}, "rope_scaling is not an object"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: rope_type = 'yarn'"),
        ({"hidden_size": 0}, "hidden_size must be a positive whole number"),
        ({"hidden_size": "64"}, "hidden_size must be a positive whole number, not '64'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be 10000 at most"),
        ({"hidden_size": 63}, "head_dim is missing"),
        ({"num_key_value_heads": 3}, r"heads \(4\) is not a multiple .* \(3\)"),
        ({"head_dim": 15}, r"head dimension \(15\) is odd"),
        ({"rope_theta": float("inf")}, "rope_theta must be a positive number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ({"bos_token_id": -1}, "bos_token_id must be a token id"),
    ],
)
def test_huggingface_config_that_cannot_be_honoured_is_refused_by_name(
    changed: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        ModelConfig.from_huggingface(LLAMA | changed)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"general.architecture": "gemma"}, "architecture: 'gemma' is not supported; supported: llama, qwen2, qwen3"),
        ({"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.type = 'yarn' is not supported"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count = 8 is not supported \(only 16 is\)"),
        ({"llama.attention.value_length": 8}, r"value_length = 8 is not supported"),
        ({"llama.attention.head_count_kv": (2, 1)}, "head_count_kv must be a positive whole number"),
        ({"llama.block_count": None}, r"llama\.block_count is missing"),
        ({"llama.block_count": 2**32 - 1}, r"llama\.block_count must be 10000 at most"),
    ],
)
def test_gguf_that_cannot_be_honoured_is_refused_by_name(changed: dict[str, object], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        ModelConfig.from_gguf(GGUF | changed, has_output_weight=False)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_what_is_not_a_json_object_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json: (cannot be read as JSON|not a JSON object)"):
        read_json_object(path)
