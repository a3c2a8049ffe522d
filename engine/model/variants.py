"""In what the supported families of models differ: one row each.

Knows what the two file formats call a family and what its layers have that others lack. Must not know tensors,
files or arithmetic. A family that the table can tell needs a row here and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from engine.model.fields import ModelError


class Window(Enum):
    """Which layers look back over a limited number of tokens."""

    NONE = "none"
    """None of them; a config that asks for a window is refused."""
    ALL = "all"
    """All, where `sliding_window` is a number."""
    LATER = "later"
    """Where `use_sliding_window`: the layers from `max_window_layers` on."""


@dataclass(frozen=True, slots=True)
class Variant:
    """`huggingface` is config.json's model_type, `gguf` general.architecture; None where the format calls it llama.

    `has_paired_gguf`: in GGUF, the rows of each query and key head are stored with the two of a rotary pair side by
    side; everywhere else they are half a head apart.
    """

    huggingface: str
    gguf: str | None
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_paired_gguf: bool = False
    window: Window = Window.NONE
    default_window: int | None = None


# Llama 2 and 3 and SmolLM2 are `llama`. A Mistral in GGUF says that it is one.
VARIANTS = (
    Variant("llama", "llama", has_paired_gguf=True),
    Variant("mistral", None, has_paired_gguf=True, window=Window.ALL, default_window=4096),
    Variant("qwen2", "qwen2", has_qkv_bias=True, window=Window.LATER, default_window=4096),
    Variant("qwen3", "qwen3", has_qk_norm=True, window=Window.LATER, default_window=4096),
)


def of_huggingface(model_type: str) -> Variant:
    """Raises ModelError."""
    return _find({variant.huggingface: variant for variant in VARIANTS}, model_type, "config.json: model_type")


def of_gguf(architecture: str) -> Variant:
    """Raises ModelError."""
    known = {variant.gguf: variant for variant in VARIANTS if variant.gguf is not None}
    return _find(known, architecture, "GGUF metadata: general.architecture")


def _find(known: Mapping[str, Variant], name: str, where: str) -> Variant:
    if name not in known:
        raise ModelError(f"{where}: {name!r} is not supported; supported: {', '.join(sorted(known))}")
    return known[name]
