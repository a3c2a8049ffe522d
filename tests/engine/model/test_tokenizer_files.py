import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.model.fields import ModelError
from engine.model.gguf import GgufFile, MetaValue
from engine.model.tokenizer_files import read_folder, read_gguf
from tests.engine.model.gguf_writer import Scalar, write_gguf
from tests.engine.model.tiny_tokenizer import MERGES, METADATA, TEMPLATE, TOKENS


def metadata(folder: Path, **changed: object) -> dict[str, MetaValue]:
    entries = METADATA | {f"tokenizer.ggml.{key}": value for key, value in changed.items()}
    kept = {key: value for key, value in entries.items() if value is not None}
    return dict(GgufFile.open(write_gguf(folder / "m.gguf", kept, {})).metadata)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return list(tokenizer.encode(text).tokens)


def test_gguf_tells_tokens_template_and_ends(tmp_path: Path) -> None:
    files = read_gguf(metadata(tmp_path))
    assert (files.bos_token, files.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (files.eos_token_ids, files.chat_template) == ((2, 0), TEMPLATE)
    assert [files.tokenizer.id_to_token(i) for i in range(len(TOKENS))] == TOKENS
    assert files.tokenizer.get_vocab_size() == len(TOKENS)


def test_smollm_splits_digits_before_it_merges(tmp_path: Path) -> None:
    smollm = read_gguf(metadata(tmp_path)).tokenizer
    assert pieces(smollm, "hello world 12") == ["hello", "Ġw", "o", "r", "l", "d", "Ġ", "1", "2"]
    gpt2 = read_gguf(metadata(tmp_path, pre="gpt-2")).tokenizer
    assert pieces(gpt2, "hello 12") == ["hello", "Ġ", "12"]


def test_special_tokens_are_found_inside_text(tmp_path: Path) -> None:
    tokenizer = read_gguf(metadata(tmp_path)).tokenizer
    assert pieces(tokenizer, "he<|im_end|><tool>he") == ["he", "<|im_end|>", "<tool>", "he"]
    assert tokenizer.decode([TOKENS.index("<|im_end|>"), TOKENS.index("<tool>")]) == "<tool>"


def test_a_bos_is_added_only_where_the_file_or_its_kind_says_so(tmp_path: Path) -> None:
    assert pieces(read_gguf(metadata(tmp_path, add_bos_token=True)).tokenizer, "he") == ["<|im_start|>", "he"]
    assert pieces(read_gguf(metadata(tmp_path, add_bos_token=None)).tokenizer, "he") == ["he"]
    llama = read_gguf(metadata(tmp_path, add_bos_token=None, pre="llama-bpe")).tokenizer
    assert pieces(llama, "hello") == ["<|im_start|>", "hello"]


def test_llama_3_takes_whole_words_of_its_vocabulary_without_merging(tmp_path: Path) -> None:
    tokens = [*TOKENS[:-1], "wo"]  # No merge leads to it.
    llama = read_gguf(metadata(tmp_path, pre="llama-bpe", tokens=tokens, merges=["h e"], add_bos_token=False)).tokenizer
    assert pieces(llama, "wo") == ["wo"]
    smollm = read_gguf(metadata(tmp_path, tokens=tokens, merges=["h e"])).tokenizer
    assert pieces(smollm, "wo") == ["w", "o"]


def test_qwen_takes_digits_one_by_one_and_composes_letters_first(tmp_path: Path) -> None:
    qwen = read_gguf(metadata(tmp_path, pre="qwen2")).tokenizer
    assert pieces(qwen, "hello 12") == ["hello", "Ġ", "1", "2"]
    assert pieces(qwen, "e\u0301") == pieces(qwen, "\u00e9") == ["Ã", "©"]
    llama = read_gguf(metadata(tmp_path, pre="llama-bpe", add_bos_token=False)).tokenizer
    assert pieces(llama, "e\u0301") != pieces(llama, "\u00e9")
    assert pieces(llama, "hello 12")[-1] == "12"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["I'm 12345, you're not", "naïve cafe\u0301  \n\n x", "日本の首都は東京です", "a\t\tb !?"]
)
def test_qwen_s_words_are_those_of_transformers(tmp_path: Path, text: str) -> None:
    from transformers import Qwen2Tokenizer

    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    pairs: Any = [tuple(merge.split()) for merge in MERGES]
    theirs = Qwen2Tokenizer(vocab=vocabulary, merges=pairs)
    assert read_gguf(metadata(tmp_path, pre="qwen2")).tokenizer.encode(text).ids == theirs.encode(text)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"model": "bert"}, r"tokenizer\.ggml\.model = 'bert' is not supported \(gpt2, llama are\)"),
        ({"model": "llama"}, r"tokenizer\.ggml\.scores does not give each token a score"),
        ({"remove_extra_whitespaces": True}, r"remove_extra_whitespaces is not supported"),
        ({"pre": "falcon"}, r"tokenizer\.ggml\.pre = 'falcon' is not .* \(only gpt-2, llama-bpe, qwen2, smollm\)"),
        ({"pre": None}, r"tokenizer\.ggml\.pre = None"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is not a list of strings"),
        ({"merges": 3}, r"tokenizer\.ggml\.merges is not a list of strings"),
        ({"merges": ["he"]}, r"merges holds 'he', which is not a pair"),
        ({"merges": ["q q"]}, r"merges do not fit the tokens"),
        ({"tokens": ["a", "b", "a"]}, r"tokens names a token twice"),
        ({"token_type": [1, 1]}, r"token_type does not give each token a type"),
        ({"bos_token_id": 100_000}, r"bos_token_id is not one of the 268 tokens"),
        ({"add_eos_token": True}, r"add_eos_token is not supported"),
    ],
)
def test_gguf_tokenizer_that_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, changed: dict[str, object], complaint: str
) -> None:
    entries = metadata(tmp_path, **changed)
    if changed.get("tokens") == ["a", "b", "a"]:
        entries |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    with pytest.raises(ModelError, match=complaint):
        read_gguf(entries)


def write_folder(folder: Path, settings: dict[str, object]) -> Path:
    read_gguf(metadata(folder)).tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_folder_tells_tokens_template_and_ends(tmp_path: Path) -> None:
    write_folder(tmp_path, {"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "chat_template": "a"})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    files = read_folder(tmp_path)
    assert (files.bos_token, files.eos_token) == (None, "<|im_end|>")
    assert (files.eos_token_ids, files.chat_template) == ((2, 0, 5), "a")
    assert pieces(files.tokenizer, "hello") == ["hello"]


def test_a_template_file_goes_before_the_settings(tmp_path: Path) -> None:
    write_folder(
        tmp_path, {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}
    )
    assert read_folder(tmp_path).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_folder(tmp_path).chat_template == "file"


def test_a_folder_needs_only_tokenizer_json(tmp_path: Path) -> None:
    write_folder(tmp_path, {})
    (tmp_path / "tokenizer_config.json").unlink()
    files = read_folder(tmp_path)
    assert (files.chat_template, files.bos_token, files.eos_token, files.eos_token_ids) == (None, None, None, ())


def test_a_llama_2_file_gives_sentencepiece_s_tokens(tmp_path: Path) -> None:
    special = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    pieces_of = [*special, *((f"<0x{byte:02X}>", 6) for byte in range(256))]
    pieces_of += [(piece, 1) for piece in ("\u2581h", "ell", "\u2581hello", "ll", "ello", *"\u2581helo")]
    tokens = [piece for piece, _ in pieces_of]
    entries = metadata(
        tmp_path,
        model="llama",
        pre="default",
        merges=None,
        tokens=tokens,
        token_type=[Scalar("i32", kind) for _, kind in pieces_of],
        scores=[float(-index) for index in range(len(tokens))],
        bos_token_id=1,
        eos_token_id=2,
        eot_token_id=None,
        add_bos_token=None,
    )
    files = read_gguf(entries)
    assert pieces(files.tokenizer, "hello he</s>l") == ["<s>", "\u2581hello", "\u2581h", "e", "</s>", "\u2581", "l"]
    assert files.tokenizer.decode(files.tokenizer.encode("hello\nhé").ids) == "hello\nhé"
    assert files.eos_token_ids == (2,)
    entries["tokenizer.ggml.add_space_prefix"] = False
    assert pieces(read_gguf(entries).tokenizer, "hello") == ["<s>", "h", "ello"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"eos_token": 3}, "eos_token is not a token"),
        ({"chat_template": {}}, "chat_template is not text"),
        ({"chat_template": ["x", {"name": "default", "template": 3}]}, "chat_template is not text"),
    ],
)
def test_settings_of_the_wrong_type_are_refused_by_name(
    tmp_path: Path, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ModelError, match=f"tokenizer_config.json: {complaint}"):
        read_folder(write_folder(tmp_path, settings))


def test_missing_and_damaged_tokenizer_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no tokenizer\.json"):
        read_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: "):
        read_folder(tmp_path)


def test_token_types_may_be_any_kind_of_number(tmp_path: Path) -> None:
    entries = metadata(tmp_path)
    entries["tokenizer.ggml.token_type"] = np.array([3, 3, 3, 4] + [1] * (len(TOKENS) - 4), np.uint8)
    assert pieces(read_gguf(entries).tokenizer, "<|im_end|>") == ["<|im_end|>"]
