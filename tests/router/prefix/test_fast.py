"""The fast encoder: which characters it is given, and that it is not used where it is wrong or breaks."""

import json
import random
from array import array
from typing import Any

import pytest
from tokenizers import Tokenizer

from router.prefix.fast import FastEncoder


@pytest.fixture(scope="module")
def encoder(tokenizer_json: str) -> FastEncoder:
    reference = Tokenizer.from_str(tokenizer_json)
    encoder = FastEncoder.load(tokenizer_json, ["<|im_end|>"], lambda text: _ids(reference, text))
    assert encoder is not None
    return encoder


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain\ntext, 'quoted' (1)!",
        "naïve café",
        "東京 서울",
        "Привет",
        "“—…”",
        "🚂",
        "مرحبا",
        "<|im_end|>\nit's 12",
    ],
)
def test_letters_signs_and_emoji_are_encoded_as_by_the_reference(
    encoder: FastEncoder, tokenizer_json: str, text: str
) -> None:
    assert encoder.encode(text.encode()) == _ids(Tokenizer.from_str(tokenizer_json), text)


@pytest.mark.parametrize(
    "character",
    ["\t", "\r", "\x0b", "\x0c", "\x00", "\x7f", "\x85", "\u00a0", "\u0301", "\u017f", "\u2028", "²", "①", "٣"],
)
def test_what_tokie_is_known_to_take_for_something_else_is_left_to_the_reference(
    encoder: FastEncoder, character: str
) -> None:
    assert encoder.encode(f"some text{character} and more".encode()) is None
    assert encoder.encode(f"東{character}".encode()) is None


def test_it_is_not_taken_where_one_sample_differs(tokenizer_json: str) -> None:
    reference = Tokenizer.from_str(tokenizer_json)

    def other(text: str) -> "array[int]":
        return _ids(reference, text.replace("railway", "highway"))

    assert FastEncoder.load(tokenizer_json, [], other) is None


def test_an_added_token_that_it_reads_in_another_way_is_found_out(tokenizer_json: str) -> None:
    document = json.loads(tokenizer_json)
    vocabulary = document["model"]["vocab"]
    vocabulary["<cut>"] = len(vocabulary)
    flags = {"lstrip": True, "rstrip": True, "single_word": True, "normalized": True, "special": False}
    document["added_tokens"].append({"id": vocabulary["<cut>"], "content": "<cut>", **flags})
    reference = Tokenizer.from_str(json.dumps(document))
    encoder = FastEncoder.load(json.dumps(document), ["<cut>"], lambda text: _ids(reference, text))
    texts = ["a <cut> b", "a<cut>b", "<cut>", "  <cut>\n<cut>"]
    assert encoder is None or all(encoder.encode(text.encode()) == _ids(reference, text) for text in texts)


@pytest.mark.parametrize("document", ["", "{}", "[1]", '{"model": {"type": "Nothing"}}', '{"model": 7}'])
def test_what_it_cannot_load_is_left_to_the_reference(document: str) -> None:
    assert FastEncoder.load(document, [], lambda text: array("I")) is None


class PanicException(BaseException):
    """As Rust's panics are called in Python."""


class Breaking:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode_batch_flat(self, *_: Any) -> Any:
        raise self.error


def test_a_panic_costs_only_the_speed_and_an_interrupt_is_passed_on() -> None:
    assert FastEncoder(Breaking(PanicException())).encode(b"text") is None
    with pytest.raises(KeyboardInterrupt):
        FastEncoder(Breaking(KeyboardInterrupt())).encode(b"text")


def test_random_plain_texts_encode_alike(encoder: FastEncoder, tokenizer_json: str) -> None:
    reference, rng = Tokenizer.from_str(tokenizer_json), random.Random(9)
    pieces = [
        "the",
        "fox",
        " ",
        "  ",
        "\n",
        "\n\n",
        "'s",
        "'LL",
        "'",
        "é",
        "東",
        "🚂",
        "7",
        ".",
        "_",
        "<|im_end|>",
        "<|",
    ]
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 20)))
        assert encoder.encode(text.encode()) == _ids(reference, text)


def _ids(tokenizer: Tokenizer, text: str) -> "array[int]":
    return array("I", tokenizer.encode(text, add_special_tokens=False).ids)
