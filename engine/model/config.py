"""What a model is: its sizes and constants, read from a config.json or from GGUF metadata.

Knows the names that both formats use and which values the model layers can honour. Must not know tensors,
torch or how files are opened. Whatever a checkpoint asks for and the layers lack is refused by name: a model
that loads and answers wrongly is worse than one that does not load.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Fields = Mapping[str, object]

# Family of layers that serves each architecture that the two formats name. Mistral without a sliding window
# has exactly Llama's layers; in GGUF it is already called llama.
_HUGGINGFACE_FAMILIES = {"llama": "llama", "mistral": "llama"}
_GGUF_FAMILIES = {"llama": "llama"}

# config.json fields that change the arithmetic, each with the only values that the layers implement.
_HONOURED: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "sliding_window": (None,),
    "quantization_config": (None,),
    "partial_rotary_factor": (1.0, None),
    "rope_interleaved": (False, None),
}


class ModelError(ValueError):
    """A model's files cannot be used; the message names the file and the field or tensor."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes count elements; `max_position` counts tokens. Raises ModelError if the sizes contradict."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rope_theta: float
    rms_norm_eps: float
    tie_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"the number of attention heads ({self.num_heads}) is not a multiple of the number of "
                f"key/value heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ModelError(f"the head dimension ({self.head_dim}) is odd, so it has no rotary halves")

    @classmethod
    def from_huggingface(cls, config: Fields, generation: Fields | None = None) -> Self:
        """From config.json and, where there is one, generation_config.json (it may name more end tokens)."""
        read = _Reader(config, "config.json")
        architecture = _family(read.text("model_type"), _HUGGINGFACE_FAMILIES, "config.json: model_type")
        for field, honoured in _HONOURED.items():
            read.refuse_unless(field, honoured)
        hidden_size = read.count("hidden_size")
        num_heads = read.count("num_attention_heads")
        also_ends = _Reader(generation or {}, "generation_config.json").token_ids("eos_token_id")
        return cls(
            architecture=architecture,
            hidden_size=hidden_size,
            intermediate_size=read.count("intermediate_size"),
            num_layers=read.count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=read.count("num_key_value_heads", default=num_heads),
            head_dim=read.count("head_dim", default=_split(hidden_size, num_heads)),
            vocab_size=read.count("vocab_size"),
            max_position=read.count("max_position_embeddings"),
            rope_theta=_huggingface_rope_theta(read),
            rms_norm_eps=read.positive("rms_norm_eps", default=1e-6),
            tie_embeddings=read.flag("tie_word_embeddings", default=False),
            eos_token_ids=tuple(dict.fromkeys((*read.token_ids("eos_token_id"), *also_ends))),
            bos_token_id=next(iter(read.token_ids("bos_token_id")), None),
        )

    @classmethod
    def from_gguf(cls, metadata: Fields, *, has_output_weight: bool, has_rope_factors: bool = False) -> Self:
        """From GGUF metadata. Two facts stand only in the tensor table: whether `output.weight` exists (if
        not, the embeddings are tied) and whether `rope_freqs.weight` does (a scaled rope, refused)."""
        read = _Reader(metadata, "GGUF metadata")
        name = read.text("general.architecture")
        architecture = _family(name, _GGUF_FAMILIES, "GGUF metadata: general.architecture")
        read.refuse_unless(f"{name}.rope.scaling.type", ("none", None))
        if has_rope_factors:
            raise ModelError("tensor rope_freqs.weight: scaled rope (type llama3) is not supported")
        hidden_size = read.count(f"{name}.embedding_length")
        num_heads = read.count(f"{name}.attention.head_count")
        head_dim = read.count(f"{name}.attention.key_length", default=_split(hidden_size, num_heads))
        read.refuse_unless(f"{name}.rope.dimension_count", (head_dim, None))
        read.refuse_unless(f"{name}.attention.value_length", (head_dim, None))
        tokens = metadata.get("tokenizer.ggml.tokens")
        num_tokens = len(tokens) if isinstance(tokens, tuple) and tokens else None
        return cls(
            architecture=architecture,
            hidden_size=hidden_size,
            intermediate_size=read.count(f"{name}.feed_forward_length"),
            num_layers=read.count(f"{name}.block_count"),
            num_heads=num_heads,
            num_kv_heads=read.count(f"{name}.attention.head_count_kv", default=num_heads),
            head_dim=head_dim,
            vocab_size=read.count(f"{name}.vocab_size", default=num_tokens),
            max_position=read.count(f"{name}.context_length"),
            rope_theta=read.positive(f"{name}.rope.freq_base", default=10_000.0),
            rms_norm_eps=read.positive(f"{name}.attention.layer_norm_rms_epsilon"),
            tie_embeddings=not has_output_weight,
            eos_token_ids=gguf_eos_token_ids(metadata),
            bos_token_id=next(iter(read.token_ids("tokenizer.ggml.bos_token_id")), None),
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises ModelError unless the file is there and holds a JSON object."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ModelError(f"{path}: not a JSON object")
    return parsed


def gguf_eos_token_ids(metadata: Fields) -> tuple[int, ...]:
    """The ids that end a generation: end of sequence, of turn, of message, as far as the file names them."""
    read = _Reader(metadata, "GGUF metadata")
    ids = (token for kind in ("eos", "eot", "eom") for token in read.token_ids(f"tokenizer.ggml.{kind}_token_id"))
    return tuple(dict.fromkeys(ids))


def _family(name: str, families: Mapping[str, str], where: str) -> str:
    if name not in families:
        raise ModelError(f"{where}: {name!r} is not supported; supported: {', '.join(sorted(families))}")
    return families[name]


def _split(hidden_size: int, num_heads: int) -> int | None:
    return hidden_size // num_heads if hidden_size % num_heads == 0 else None


def _huggingface_rope_theta(read: "_Reader") -> float:
    """Transformers 5 writes `rope_parameters` with theta inside; before, `rope_theta` and `rope_scaling`."""
    parameters: _Reader | None = None
    for field in ("rope_scaling", "rope_parameters"):
        nested = read.fields.get(field)
        if nested is None:
            continue
        if not isinstance(nested, Mapping):
            raise ModelError(f"{read.source}: {field} is not an object")
        parameters = _Reader(nested, f"{read.source}: {field}")
        for kind in ("rope_type", "type"):
            parameters.refuse_unless(kind, ("default", None))
        parameters.refuse_unless("partial_rotary_factor", (1.0, None))
    if parameters is not None and "rope_theta" in parameters.fields:
        return parameters.positive("rope_theta")
    return read.positive("rope_theta", default=10_000.0)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed access to fields of unknown origin; every error names the source and the field."""

    fields: Fields
    source: str

    def text(self, field: str) -> str:
        value = self._present(field, None)
        if not isinstance(value, str):
            raise self._wrong(field, value, "a string")
        return value

    def count(self, field: str, default: int | None = None) -> int:
        value = self._present(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(field, value, "a positive whole number")
        return value

    def positive(self, field: str, default: float | None = None) -> float:
        value = self._present(field, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self._wrong(field, value, "a positive number")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self._present(field, default)
        if not isinstance(value, bool):
            raise self._wrong(field, value, "true or false")
        return value

    def token_ids(self, field: str) -> tuple[int, ...]:
        """One id, a list of them, or nothing."""
        value = self.fields.get(field)
        values = value if isinstance(value, list | tuple) else () if value is None else (value,)
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in values):
            raise self._wrong(field, value, "a token id or a list of them")
        return tuple(values)

    def refuse_unless(self, field: str, honoured: tuple[object, ...]) -> None:
        value = self.fields.get(field)
        if field in self.fields and value not in honoured:
            raise ModelError(f"{self.source}: {field} = {value!r} is not supported (only {honoured[0]!r} is)")

    def _present(self, field: str, default: object) -> object:
        value = self.fields.get(field)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.source}: {field} is missing")
        return value

    def _wrong(self, field: str, value: object, wanted: str) -> ModelError:
        return ModelError(f"{self.source}: {field} must be {wanted}, not {str(value)[:80]!r}")
