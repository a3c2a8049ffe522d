"""A model's tokenizer as its files describe it: a Hugging Face folder, or the tokenizer.* keys of a GGUF.

Knows file and key names and how to build a `tokenizers` tokenizer from GGUF's tokens and merges (byte-level BPE), or
scores (SentencePiece). Must not know chats, weights or torch. Any other kind is refused by name: a tokenizer that is
nearly right gives quietly worse answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from engine.model.config import gguf_eos_token_ids
from engine.model.fields import ModelError, read_json_object
from engine.model.gguf import MetaValue
from engine.model.sentencepiece import sentencepiece_tokenizer

# GGUF's numbers for what a token is.
_CONTROL, _USER_DEFINED = 3, 4

# Llama 3 keeps up to three digits together, Qwen none.
_LLAMA_3_WORDS, _QWEN_2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}{1,3}", r"\p{N}")
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What there is to know, whichever format said it."""

    tokenizer: tokenizers.Tokenizer
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]


def read_folder(folder: Path) -> TokenizerFiles:
    """From tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises ModelError."""
    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelError(f"{folder}: there is no tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises bare Exception.
        raise ModelError(f"{file}: {error}") from None
    settings, *others = (
        read_json_object(folder / name) if (folder / name).exists() else {}
        for name in ("tokenizer_config.json", "generation_config.json", "config.json")
    )
    eos_token = _special_token(settings, "eos_token")
    ends = [] if eos_token is None else [tokenizer.token_to_id(eos_token)]
    for fields in others:
        also = fields.get("eos_token_id")
        ends += also if isinstance(also, list) else [also]
    return TokenizerFiles(
        tokenizer=tokenizer,
        chat_template=_folder_template(folder, settings),
        bos_token=_special_token(settings, "bos_token"),
        eos_token=eos_token,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if isinstance(end, int))),
    )


def read_gguf(metadata: Mapping[str, MetaValue]) -> TokenizerFiles:
    """From the tokenizer.* keys of a GGUF. Raises ModelError."""
    for key in ("add_eos_token", "remove_extra_whitespaces", "precompiled_charsmap"):
        value = metadata.get(f"tokenizer.ggml.{key}", False)
        if value is not False and (not isinstance(value, np.ndarray) or len(value)):
            raise ModelError(f"GGUF metadata: tokenizer.ggml.{key} is not supported")
    tokens = _gguf_strings(metadata, "tokenizer.ggml.tokens")
    bos_token = _gguf_special_token(metadata, tokens, "bos")
    template = metadata.get("tokenizer.chat_template")
    return TokenizerFiles(
        tokenizer=_gguf_tokenizer(metadata, tokens, bos_token),
        chat_template=template if isinstance(template, str) else None,
        bos_token=bos_token,
        eos_token=_gguf_special_token(metadata, tokens, "eos"),
        eos_token_ids=gguf_eos_token_ids(metadata),
    )


def _special_token(settings: Mapping[str, Any], name: str) -> str | None:
    """Written as a string or, with its flags, as an object."""
    token = settings.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    if token is not None and not isinstance(token, str):
        raise ModelError(f"tokenizer_config.json: {name} is not a token")
    return token


def _folder_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # Several by name; chats use the one called default.
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is not None and not isinstance(template, str):
        raise ModelError("tokenizer_config.json: chat_template is not text")
    return template


def _gguf_tokenizer(
    metadata: Mapping[str, MetaValue], tokens: tuple[str, ...], bos_token: str | None
) -> tokenizers.Tokenizer:
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in _BUILDERS:
        known = ", ".join(_BUILDERS)
        raise ModelError(f"GGUF metadata: tokenizer.ggml.model = {kind!r} is not supported ({known} are)")
    if len(set(tokens)) != len(tokens):
        raise ModelError("GGUF metadata: tokenizer.ggml.tokens names a token twice")
    tokenizer, adds_bos = _BUILDERS[kind](metadata, tokens)
    _add_special_tokens(tokenizer, metadata, tokens)
    if bos_token is not None and metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        ids = [(bos_token, tokenizer.token_to_id(bos_token))]
        tokenizer.post_processor = processors.TemplateProcessing([bos_token, "$A"], special_tokens=ids)
    return tokenizer


def _sentencepiece(metadata: Mapping[str, MetaValue], tokens: tuple[str, ...]) -> tuple[tokenizers.Tokenizer, bool]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens):
        raise ModelError("GGUF metadata: tokenizer.ggml.scores does not give each token a score")
    kinds = _token_kinds(metadata, tokens)
    adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return sentencepiece_tokenizer(tokens, scores.tolist(), kinds, adds_space=adds_space), True


def _byte_level(metadata: Mapping[str, MetaValue], tokens: tuple[str, ...]) -> tuple[tokenizers.Tokenizer, bool]:
    """And whether it adds a bos if the file says nothing."""
    name = metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in _WORDS:
        known = ", ".join(sorted(_WORDS))
        raise ModelError(f"GGUF metadata: tokenizer.ggml.pre = {name!r} is not supported (only {known})")
    words = _WORDS[name]
    tokenizer = tokenizers.Tokenizer(_gguf_bpe(metadata, tokens, words.ignore_merges))
    if words.normalizer is not None:
        tokenizer.normalizer = words.normalizer
    tokenizer.pre_tokenizer = words.split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, words.adds_bos


# By GGUF's name for them (tokenizer.ggml.model).
_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _gguf_bpe(metadata: Mapping[str, MetaValue], tokens: tuple[str, ...], ignore_merges: bool) -> models.BPE:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = []
    for line in _gguf_strings(metadata, "tokenizer.ggml.merges"):
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise ModelError(f"GGUF metadata: tokenizer.ggml.merges holds {line!r}, which is not a pair")
        merges.append((left, right))
    try:
        return models.BPE(vocabulary, merges, ignore_merges=ignore_merges)
    except Exception as error:  # The library raises bare Exception.
        raise ModelError(f"GGUF metadata: tokenizer.ggml.merges do not fit the tokens: {error}") from None


def _add_special_tokens(
    tokenizer: tokenizers.Tokenizer, metadata: Mapping[str, MetaValue], tokens: tuple[str, ...]
) -> None:
    marked = zip(tokens, _token_kinds(metadata, tokens), strict=True)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in marked
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )


def _token_kinds(metadata: Mapping[str, MetaValue], tokens: tuple[str, ...]) -> list[int]:
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        raise ModelError("GGUF metadata: tokenizer.ggml.token_type does not give each token a type")
    listed: list[int] = kinds.tolist()
    return listed


def _gguf_strings(metadata: Mapping[str, MetaValue], key: str) -> tuple[str, ...]:
    value = metadata.get(key)
    if not isinstance(value, tuple):
        raise ModelError(f"GGUF metadata: {key} is not a list of strings")
    return value


def _gguf_special_token(metadata: Mapping[str, MetaValue], tokens: tuple[str, ...], kind: str) -> str | None:
    key = f"tokenizer.ggml.{kind}_token_id"
    token_id = metadata.get(key)
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise ModelError(f"GGUF metadata: {key} is not one of the {len(tokens)} tokens")
    return tokens[token_id]


@dataclass(frozen=True, slots=True)
class _Words:
    """How a family of byte-level tokenizers cuts text into words before merging."""

    split: pre_tokenizers.PreTokenizer
    ignore_merges: bool = False
    adds_bos: bool = False
    normalizer: normalizers.Normalizer | None = None


def _split_by(words: str) -> pre_tokenizers.PreTokenizer:
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"), bytes_alone])


# By GGUF's name for them (tokenizer.ggml.pre).
_WORDS = {
    "gpt-2": _Words(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": _Words(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "llama-bpe": _Words(_split_by(_LLAMA_3_WORDS), ignore_merges=True, adds_bos=True),
    "qwen2": _Words(_split_by(_QWEN_2_WORDS), normalizer=normalizers.NFC()),
}
