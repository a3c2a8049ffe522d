"""What a model is: its sizes and constants, read from a config.json or from GGUF metadata.

Knows the names that both formats use and which values the model layers can honour. Must not know tensors,
torch or how files are opened. Whatever a checkpoint asks for and the layers lack is refused by name: a model
that loads and answers wrongly is worse than one that does not load.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from engine.model import variants
from engine.model.fields import Fields, ModelError
from engine.model.variants import Variant, Window

# More than any model has, and few enough to list their weights before a file is asked for them.
_MOST_LAYERS = 10_000
# config.json fields that change the arithmetic, each with the only values that the layers implement.
_HONOURED: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "quantization_config": (None,),
    "partial_rotary_factor": (1.0, None),
    "rope_interleaved": (False, None),
    "use_mrope": (False, None),
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: `theta` is the base. Positions are divided by `linear_factor`; or frequencies are scaled as
    Llama 3 does it; or the checkpoint carries a divisor for each frequency (`has_factors`)."""

    theta: float
    linear_factor: float = 1.0
    llama3: "Llama3Scaling | None" = None
    has_factors: bool = False


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Waves shorter than `original_max_position` / `high_freq_factor` tokens stay, those longer than it /
    `low_freq_factor` are stretched by `factor`, and between the two it is gradual."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes count elements; `max_position` and `windows` count tokens: how far back each layer looks, itself
    included, or None for all. Raises ModelError if the sizes contradict."""

    variant: Variant
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rope: Rope
    rms_norm_eps: float
    tie_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    windows: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"the number of attention heads ({self.num_heads}) is not a multiple of the number of "
                f"key/value heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ModelError(f"the head dimension ({self.head_dim}) is odd, so it has no rotary halves")

    @classmethod
    def from_huggingface(cls, config: Mapping[str, object], generation: Mapping[str, object] | None = None) -> Self:
        """From config.json and, where there is one, generation_config.json (it may name more end tokens)."""
        read = Fields(config, "config.json")
        variant = variants.of_huggingface(read.text("model_type"))
        for field, honoured in _HONOURED.items():
            read.refuse_unless(field, honoured)
        hidden_size = read.count("hidden_size")
        num_heads = read.count("num_attention_heads")
        num_layers = read.count("num_hidden_layers", most=_MOST_LAYERS)
        also_ends = Fields(generation or {}, "generation_config.json").token_ids("eos_token_id")
        return cls(
            variant=variant,
            hidden_size=hidden_size,
            intermediate_size=read.count("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=read.count("num_key_value_heads", default=num_heads),
            head_dim=read.count("head_dim", default=_split(hidden_size, num_heads)),
            vocab_size=read.count("vocab_size"),
            max_position=read.count("max_position_embeddings"),
            rope=_rope(read),
            rms_norm_eps=read.positive("rms_norm_eps", default=1e-6),
            tie_embeddings=read.flag("tie_word_embeddings", default=False),
            eos_token_ids=tuple(dict.fromkeys((*read.token_ids("eos_token_id"), *also_ends))),
            bos_token_id=next(iter(read.token_ids("bos_token_id")), None),
            windows=_windows(read, variant, num_layers),
        )

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, object], *, has_output_weight: bool, has_rope_factors: bool = False
    ) -> Self:
        """From GGUF metadata. Two facts stand only in the tensor table: whether `output.weight` exists (if
        not, the embeddings are tied) and whether `rope_freqs.weight` does (Llama 3's scaling, worked out)."""
        read = Fields(metadata, "GGUF metadata")
        name = read.text("general.architecture")
        variant = variants.of_gguf(name)
        hidden_size = read.count(f"{name}.embedding_length")
        num_heads = read.count(f"{name}.attention.head_count")
        num_layers = read.count(f"{name}.block_count", most=_MOST_LAYERS)
        head_dim = read.count(f"{name}.attention.key_length", default=_split(hidden_size, num_heads))
        for field in ("rope.dimension_count", "attention.value_length"):
            read.refuse_unless(f"{name}.{field}", (head_dim, None))
        window = f"{name}.attention.sliding_window"
        tokens = metadata.get("tokenizer.ggml.tokens")
        num_tokens = len(tokens) if isinstance(tokens, tuple) and tokens else None
        return cls(
            variant=variant,
            hidden_size=hidden_size,
            intermediate_size=read.count(f"{name}.feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=read.count(f"{name}.attention.head_count_kv", default=num_heads),
            head_dim=head_dim,
            vocab_size=read.count(f"{name}.vocab_size", default=num_tokens),
            max_position=read.count(f"{name}.context_length"),
            rope=_gguf_rope(read, name, has_rope_factors),
            rms_norm_eps=read.positive(f"{name}.attention.layer_norm_rms_epsilon"),
            tie_embeddings=not has_output_weight,
            eos_token_ids=gguf_eos_token_ids(metadata),
            bos_token_id=next(iter(read.token_ids("tokenizer.ggml.bos_token_id")), None),
            windows=(read.count(window) if metadata.get(window) else None,) * num_layers,
        )


def gguf_eos_token_ids(metadata: Mapping[str, object]) -> tuple[int, ...]:
    """The ids that end a generation: end of sequence, of turn, of message, as far as the file names them."""
    read = Fields(metadata, "GGUF metadata")
    ids = (token for kind in ("eos", "eot", "eom") for token in read.token_ids(f"tokenizer.ggml.{kind}_token_id"))
    return tuple(dict.fromkeys(ids))


def _split(hidden_size: int, num_heads: int) -> int | None:
    return hidden_size // num_heads if hidden_size % num_heads == 0 else None


def _rope(read: Fields) -> Rope:
    """Transformers 5 writes `rope_parameters` with theta inside; before, `rope_theta` and `rope_scaling`."""
    scaling = read.nested("rope_parameters") or read.nested("rope_scaling")
    if scaling is None:
        return Rope(read.positive("rope_theta", default=10_000.0))
    scaling.refuse_unless("partial_rotary_factor", (1.0, None))
    theta = scaling.positive("rope_theta", default=read.positive("rope_theta", default=10_000.0))
    field = "rope_type" if "rope_type" in scaling.values else "type"
    scaling.refuse_unless(field, ("default", "linear", "llama3", None))
    kind = scaling.values.get(field)
    if kind == "linear":
        return Rope(theta, linear_factor=scaling.positive("factor"))
    if kind == "llama3":
        return Rope(theta, llama3=_llama3(scaling))
    return Rope(theta)


def _llama3(scaling: Fields) -> Llama3Scaling:
    low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
    if low >= high:
        raise scaling.wrong("high_freq_factor", f"above low_freq_factor ({low:g})")
    return Llama3Scaling(scaling.positive("factor"), low, high, scaling.count("original_max_position_embeddings"))


def _gguf_rope(read: Fields, name: str, has_factors: bool) -> Rope:
    theta = read.positive(f"{name}.rope.freq_base", default=10_000.0)
    kind = f"{name}.rope.scaling.type"
    read.refuse_unless(kind, ("none", "linear", None))
    is_linear = read.values.get(kind) == "linear"
    factor = read.positive(f"{name}.rope.scaling.factor") if is_linear else 1.0
    return Rope(theta, linear_factor=factor, has_factors=has_factors)


def _windows(read: Fields, variant: Variant, num_layers: int) -> tuple[int | None, ...]:
    match variant.window:
        case Window.NONE:
            read.refuse_unless("sliding_window", (None,))
            first = num_layers
        case Window.ALL:
            is_off = "sliding_window" in read.values and read.values["sliding_window"] is None
            first = num_layers if is_off else 0
        case Window.LATER:
            is_on = read.flag("use_sliding_window", default=False)
            first = min(read.count("max_window_layers", default=28), num_layers) if is_on else num_layers
    if first == num_layers:
        return (None,) * num_layers
    window = read.count("sliding_window", default=variant.default_window)
    return (None,) * first + (window,) * (num_layers - first)
