"""Where a pool's tokenizer and chat template come from: what an engine serves, or a Hugging Face folder.

Knows file names and field names; knows nothing of what a tokenizer does. Reads files: not for the event loop.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


class SourceError(ValueError):
    """A tokenizer cannot be had from here; the message names the file or the field."""


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """`tokenizer` is the text of a tokenizer.json; `block_size` and `max_model_len` are in tokens, where known."""

    tokenizer: str
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    model: str | None = None
    block_size: int | None = None
    max_model_len: int | None = None

    @classmethod
    def from_served(cls, document: Mapping[str, object]) -> Self:
        """What an engine answers at GET /pointsman/tokenizer; `tokenizer` as an object or as its JSON text.

        Raises SourceError naming the field.
        """
        tokenizer = document.get("tokenizer")
        text = json.dumps(tokenizer) if isinstance(tokenizer, dict) else tokenizer
        if not isinstance(text, str) or not text.startswith("{"):
            raise SourceError("the served tokenizer: `tokenizer` must be the object of a tokenizer.json")
        where = "the served tokenizer"
        return cls(
            tokenizer=text,
            chat_template=_text(document, "chat_template", where),
            bos_token=_text(document, "bos_token", where),
            eos_token=_text(document, "eos_token", where),
            model=_text(document, "model", where),
            block_size=_count(document, "block_size", where),
            max_model_len=_count(document, "max_model_len", where),
        )

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """A folder with tokenizer.json and perhaps tokenizer_config.json and chat_template.jinja, or a tokenizer.json;
        else the id of a model on the Hugging Face hub (`org/name`), which is fetched if need be.

        Raises SourceError naming the file.
        """
        path = Path(path)
        if _HUB_ID.fullmatch(str(path)) and not path.exists():
            path = _fetch(str(path))
        folder, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
        tokenizer = _read(file)
        if tokenizer is None:
            raise SourceError(f"{file}: there is no such file")
        config_file = folder / "tokenizer_config.json"
        config = _parse(config_file, _read(config_file) or "{}")
        return cls(
            tokenizer=tokenizer,
            chat_template=_read(folder / "chat_template.jinja") or _named_template(config, config_file),
            bos_token=_special_token(config, "bos_token", config_file),
            eos_token=_special_token(config, "eos_token", config_file),
        )


def _fetch(hub_id: str) -> Path:
    """The folder of a model's tokenizer files."""
    import huggingface_hub  # comes with `tokenizers`, and takes a while to load

    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except Exception as error:  # It passes on those of several libraries.
        raise SourceError(f"`{hub_id}` is no path here, and the hub has it not: {error}") from error


def _text(fields: Mapping[str, object], name: str, where: object) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise SourceError(f"{where}: `{name}` must be text or null, not {type(value).__name__}")
    return value


def _count(fields: Mapping[str, object], name: str, where: object) -> int | None:
    value = fields.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise SourceError(f"{where}: `{name}` must be a positive integer or null")
    return value


def _read(file: Path) -> str | None:
    """None where there is no such file."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file}: {error}") from error


def _parse(file: Path, text: str) -> Mapping[str, object]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise SourceError(f"{file}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise SourceError(f"{file}: must be a JSON object")
    return fields


def _named_template(config: Mapping[str, object], file: Path) -> str | None:
    """A template alone, or the one called "default" of several."""
    several = config.get("chat_template")
    if not isinstance(several, list):
        return _text(config, "chat_template", file)
    named = [entry for entry in several if isinstance(entry, dict) and entry.get("name") == "default"]
    return _text(named[0], "template", file) if named else None


def _special_token(config: Mapping[str, object], name: str, file: Path) -> str | None:
    """The token's text, or an object with the text as `content`."""
    value = config.get(name)
    return _text(value, "content", file) if isinstance(value, dict) else _text(config, name, file)
