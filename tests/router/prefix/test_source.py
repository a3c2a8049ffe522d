"""Tokenizers from what an engine serves and from Hugging Face folders, and what is said of broken ones."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from router.prefix.source import SourceError, TokenizerSource


def write(folder: Path, **files: object) -> Path:
    """Files by stem, with `__` for a dot; what is not text becomes JSON."""
    for stem, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / stem.replace("__", ".")).write_text(text)
    return folder


def test_a_served_document_has_all_fields(served: dict[str, Any]) -> None:
    source = TokenizerSource.from_served(served)
    assert json.loads(source.tokenizer) == served["tokenizer"]
    assert (source.model, source.block_size, source.max_model_len) == ("fox", 16, 2048)
    assert (source.chat_template, source.eos_token) == (served["chat_template"], "<|im_end|>")


def test_a_served_document_may_have_no_template(served: dict[str, Any]) -> None:
    source = TokenizerSource.from_served({"tokenizer": served["tokenizer"], "chat_template": None})
    assert (source.chat_template, source.block_size) == (None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokenizer", None), ("tokenizer", "text"), ("chat_template", 3), ("bos_token", {}), ("block_size", 0),
     ("block_size", True), ("max_model_len", "2048"), ("model", 7)],
)  # fmt: skip
def test_a_wrong_field_of_a_served_document_is_named(served: dict[str, Any], field: str, value: object) -> None:
    with pytest.raises(SourceError, match=f"`{field}`"):
        TokenizerSource.from_served(served | {field: value})


def test_a_folder_gives_tokenizer_template_and_special_tokens(tmp_path: Path) -> None:
    config = {"chat_template": "T", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    write(tmp_path, tokenizer__json={}, tokenizer_config__json=config)
    source = TokenizerSource.from_path(tmp_path)
    assert (source.tokenizer, source.chat_template, source.bos_token, source.eos_token) == ("{}", "T", "<s>", "</s>")
    assert TokenizerSource.from_path(str(tmp_path / "tokenizer.json")) == source


def test_a_template_in_its_own_file_wins(tmp_path: Path) -> None:
    config = {"chat_template": "in the config"}
    write(tmp_path, tokenizer__json={}, tokenizer_config__json=config, chat_template__jinja="its own")
    assert TokenizerSource.from_path(tmp_path).chat_template == "its own"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]
    write(tmp_path, tokenizer__json={}, tokenizer_config__json={"chat_template": several})
    assert TokenizerSource.from_path(tmp_path).chat_template == "B"
    write(tmp_path, tokenizer_config__json={"chat_template": several[:1]})
    assert TokenizerSource.from_path(tmp_path).chat_template is None


def test_a_tokenizer_alone_is_enough(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json={})
    assert TokenizerSource.from_path(tmp_path) == TokenizerSource(tokenizer="{}")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "tokenizer.json: there is no such file"),
        ({"tokenizer__json": {}, "tokenizer_config__json": "{"}, "tokenizer_config.json: not JSON"),
        ({"tokenizer__json": {}, "tokenizer_config__json": [1]}, "tokenizer_config.json: must be a JSON object"),
        ({"tokenizer__json": {}, "tokenizer_config__json": {"bos_token": 1}}, "tokenizer_config.json: `bos_token`"),
        ({"tokenizer__json": {}, "tokenizer_config__json": {"chat_template": 1}}, "`chat_template`"),
    ],
)
def test_a_wrong_folder_is_told_by_file_and_field(tmp_path: Path, files: dict[str, object], named: str) -> None:
    with pytest.raises(SourceError, match=named):
        TokenizerSource.from_path(write(tmp_path, **files))
    with pytest.raises(SourceError, match="no such file"):
        TokenizerSource.from_path(tmp_path / "nowhere")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match=r"tokenizer\.json"):
        TokenizerSource.from_path(tmp_path)


def test_a_model_of_the_hub_is_found_among_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "models--org--fox"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    write(snapshot, tokenizer__json={"model": {}}, tokenizer_config__json={"chat_template": "hub"})
    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda id, **options: real(id, cache_dir=tmp_path, local_files_only=True, **options),
    )
    assert TokenizerSource.from_path("org/fox").chat_template == "hub"
    with pytest.raises(SourceError, match="`org/wolf` is no path here, and the hub has it not"):
        TokenizerSource.from_path("org/wolf")


@pytest.mark.parametrize("path", ["/org/fox", "./fox", "fox", "a/b/c"])
def test_what_is_no_hub_id_is_a_path_alone(path: str) -> None:
    with pytest.raises(SourceError, match="there is no such file"):
        TokenizerSource.from_path(path)
