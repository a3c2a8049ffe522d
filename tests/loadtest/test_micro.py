"""The micro-benchmark: that it measures what it says, and what it says of tokenizers that cannot be had."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from loadtest import micro
from loadtest.errors import LoadError

TEMPLATE = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "SIZES", {"tiny": 800, "small": 3000})
    monkeypatch.setattr(micro, "NUM_BODIES", 4)


@pytest.fixture
def document() -> dict[str, Any]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return {"tokenizer": json.loads(tokenizer.to_str()), "chat_template": TEMPLATE, "block_size": 16}


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_every_case_is_measured_and_printed(
    tmp_path: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert micro.main(["prefix", str(write(tmp_path / "served.json", document)), "--rounds", "2"]) == 0
    out = capsys.readouterr().out
    for case in ("tiny, seen before", "small, last sixteenth new", "small, all new", "24 turns, the last one new"):
        assert case in out
    share = re.search(r"known of what was asked over 24 turns \S* +(\S+)", out)
    assert share is not None
    assert 75.0 < float(share.group(1)) < 92.1, "of all turns only the newest is new, which is 8 % of what is asked"
    assert out.count("bytes a ") == 3


def test_the_cases_send_what_their_names_say() -> None:
    cases = {name: (before, chats) for name, before, chats in micro._cases(1)}
    before, seen = cases["small, seen before"]
    assert before == seen
    assert len({json.dumps(chat[0]) for chat in seen}) == 1
    assert sum(len(message["content"]) for message in seen[0]) == 3000 - micro.FRAME_BYTES
    for old, new in zip(seen, cases["small, last sixteenth new"][1], strict=True):
        assert old[0] == new[0]
        assert len(old[1]["content"]) == len(new[1]["content"])
        common = next(at for at, (a, b) in enumerate(zip(old[1]["content"], new[1]["content"], strict=True)) if a != b)
        assert len(old[1]["content"]) - common <= 3000 / 16
    talks = cases["24 turns, the last one new"]
    assert [talk[:-2] for talk in talks[1]] == talks[0]
    assert {len(talk) for talk in talks[1]} == {48}


def test_a_folder_with_a_tokenizer_is_read(tmp_path: Path, document: dict[str, Any]) -> None:
    write(tmp_path / "tokenizer.json", document["tokenizer"])
    write(tmp_path / "tokenizer_config.json", {"chat_template": TEMPLATE})
    sources = [micro.load_source(tmp_path), micro.load_source(tmp_path / "tokenizer.json")]
    assert [source.chat_template for source in sources] == [TEMPLATE, TEMPLATE]


@pytest.mark.parametrize("content", [{"tokenizer": {}, "chat_template": None}, {"chat_template": "x"}])
def test_what_is_no_tokenizer_with_a_template_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(LoadError):
        micro.load_source(write(tmp_path / "served.json", content))


def test_wrong_use_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert micro.main(["prefix", str(tmp_path / "nothing.json")]) == 1
    assert micro.main(["prefix", str(tmp_path), "--rounds", "0"]) == 2
    errors = capsys.readouterr().err
    assert "nothing.json" in errors
    assert "--rounds: must be at least 1" in errors
