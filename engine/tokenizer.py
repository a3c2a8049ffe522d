"""Text to token ids and back, and chat messages to text, for one model.

Knows how ids become bytes and when bytes are whole characters. Must not know HTTP, sequences, torch, how files
are laid out (model/tokenizer_files.py) or how templates run (pointsman.chat_template). What it serves (`served`) is all
that another process needs to get the same ids. Calls are synchronous and safe from any thread; long texts belong
off the event loop.
"""

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import tokenizers

from engine.model.fields import ModelError
from engine.model.gguf import GgufFile, find_gguf
from engine.model.tokenizer_files import read_folder, read_gguf
from pointsman.chat_template import ChatTemplate, Message, RenderError, TemplateSourceError, plain_message, text_of_part

__all__ = ["IncrementalDecoder", "PromptError", "Tokenizer"]


class PromptError(ValueError):
    """What a client sent cannot become a prompt; the message is meant for that client (status 400)."""


@dataclass(eq=False, slots=True)
class Tokenizer:
    """The tokenizer and chat template of one model. Ids are ints; text is never cut inside a character."""

    eos_token_ids: tuple[int, ...]
    _tokenizer: tokenizers.Tokenizer
    _bos_token: str | None
    _eos_token: str | None
    _chat: ChatTemplate | None
    _special_ids: frozenset[int] = field(init=False)
    _bytes_of: "TokenBytes" = field(init=False)

    def __post_init__(self) -> None:
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        decoder = self._tokenizer.decoder
        description = None if decoder is None else json.loads(decoder.__getstate__())
        self._bytes_of = TokenBytes(self._tokenizer, _piece_reader(description))

    @classmethod
    def load(cls, path: Path, chat_template: str | None = None) -> Self:
        """From a .gguf file, a folder with tokenizer.json, or a folder with exactly one .gguf. `chat_template` takes
        the place of the model's own. Raises ModelError naming what is missing or not supported."""
        gguf = find_gguf(path)
        files = read_folder(path) if gguf is None else read_gguf(GgufFile.open(gguf).metadata)
        special = {"bos_token": files.bos_token, "eos_token": files.eos_token}
        variables = {name: token for name, token in special.items() if token is not None}
        template = files.chat_template if chat_template is None else chat_template
        try:
            chat = None if template is None else ChatTemplate(template, variables)
        except TemplateSourceError as error:
            raise ModelError(f"the chat template does not parse: {error}") from None
        return cls(files.eos_token_ids, files.tokenizer, files.bos_token, files.eos_token, chat)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """A completion prompt: with a leading BOS only if the model's tokenizer adds one."""
        return self._encode(text, add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """The rendered chat as ids; the template writes its own special tokens. Raises PromptError."""
        text = self.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt, **template_kwargs)
        return self._encode(text, add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """The chat as the model's template writes it. Raises PromptError for what the template refuses."""
        if self._chat is None:
            raise PromptError("this model has no chat template; use completions")
        ours = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        _check_contents(messages)
        takes_parts = self._chat.takes_parts
        plain = [plain_message(message, _spelled, takes_parts=takes_parts) for message in messages]
        try:
            return self._chat.render(plain, template_kwargs | ours)
        except RenderError as error:
            raise PromptError(str(error)) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The whole text of a sequence, without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def decoder(self, *, skip_special_tokens: bool = True) -> "IncrementalDecoder":
        """For one generation: a continuation, so a leading space stays."""
        return IncrementalDecoder(self._special_ids if skip_special_tokens else frozenset(), self._bytes_of)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, special ones too: UTF-8, of which a token may hold a part of a character."""
        return self._bytes_of[token_id]

    @property
    def chat_template(self) -> str | None:
        return None if self._chat is None else self._chat.source

    def to_json(self) -> str:
        """As tokenizer.json has it. Takes some 0.1 s."""
        return self._tokenizer.to_str()

    def served(self) -> dict[str, Any]:
        """All that is needed to rebuild this tokenizer. Takes some 0.1 s: ask once, keep the bytes."""
        return {
            "tokenizer": json.loads(self.to_json()),
            "chat_template": self.chat_template,
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
        }

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            raise PromptError("the text holds a lone surrogate, which is not a character") from None

    def __repr__(self) -> str:
        template = "no template" if self._chat is None else "chat template"
        return f"<Tokenizer {self._tokenizer.get_vocab_size()} tokens {template}>"


@dataclass(eq=False, slots=True)
class IncrementalDecoder:
    """Turns ids into text as they come, at constant cost for each. Bytes of an unfinished character wait."""

    _special_ids: frozenset[int]
    _bytes_of: "TokenBytes"
    _utf8: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty for special tokens and half characters."""
        if token_id in self._special_ids:
            return ""
        return self._utf8.decode(self._bytes_of[token_id])

    def flush(self) -> str:
        """What was held back, at the end of the generation: nothing, or one replacement character."""
        return self._utf8.decode(b"", final=True)

    def __repr__(self) -> str:
        return f"<IncrementalDecoder {len(self._utf8.getstate()[0])} bytes held>"


@dataclass(eq=False, slots=True)
class TokenBytes:
    """Token id -> its UTF-8 bytes, worked out on first use."""

    _tokenizer: tokenizers.Tokenizer
    _to_bytes: Callable[[str], bytes]
    _known: dict[int, bytes] = field(default_factory=dict)

    def __getitem__(self, token_id: int) -> bytes:
        """Empty for an id without a token: models pad their vocabulary."""
        known = self._known.get(token_id)
        if known is None:
            piece = self._tokenizer.id_to_token(token_id)
            known = self._known[token_id] = b"" if piece is None else self._to_bytes(piece)
        return known


def _check_contents(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        content, where = message.get("content"), f"messages[{index}].content"
        if content is not None and not isinstance(content, str | list):
            raise PromptError(f"{where} must be a string or a list of text parts")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if text_of_part(part) is None:
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise PromptError(f"{where}[{number}] is of type {kind!r}; this model takes only text parts")


def _spelled(part: object) -> str:
    return text_of_part(part) or ""


def _piece_reader(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    """How a token of the vocabulary spells bytes, from the decoder's entry in tokenizer.json."""
    kinds = [] if decoder is None else [step["type"] for step in decoder.get("decoders", [decoder])]
    if kinds == ["ByteLevel"]:
        return partial(_byte_level_bytes, _byte_level_alphabet())
    if "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return _byte_fallback_bytes
    raise ModelError(f"tokenizer.json: decoder {' + '.join(kinds) or 'none'} is not supported")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _byte_level_bytes(alphabet: Mapping[str, int], piece: str) -> bytes:
    try:
        return bytes(alphabet[character] for character in piece)
    except KeyError:  # A token added as plain text.
        return piece.encode()


def _byte_fallback_bytes(piece: str) -> bytes:
    """SentencePiece's spelling: `<0x0A>` is a byte, a lower block is a space."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace("\u2581", " ").encode()
