import pytest

from engine.text import TextStream
from engine.tokenizer import Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", METADATA, {}))


def streamed(tokenizer: Tokenizer, text: str, *stop: str, min_tokens: int = 0) -> tuple[list[str], str | None]:
    """Pushes `text` a token at a time: the pieces that came out, and what stopped it."""
    stream = TextStream(tokenizer.decoder(), stop)
    pieces = []
    for number, token in enumerate(tokenizer.encode(text), start=1):
        pieces.append(stream.push(token, may_stop=number >= min_tokens))
        if stream.matched is not None:
            break
    return [*pieces, stream.flush()], stream.matched


def test_without_stop_strings_each_token_gives_its_text_at_once(tokenizer: Tokenizer) -> None:
    assert streamed(tokenizer, "abc") == (["a", "b", "c", ""], None)


def test_a_stop_string_over_several_tokens_never_shows(tokenizer: Tokenizer) -> None:
    assert streamed(tokenizer, "ab STOP cd", "STOP") == (["a", "b", " ", "", "", "", "", ""], "STOP")


def test_what_only_began_like_a_stop_string_comes_out_after_all(tokenizer: Tokenizer) -> None:
    pieces, matched = streamed(tokenizer, "xSTxSTOyST", "STOP")
    assert "".join(pieces) == "xSTxSTOyST"
    assert matched is None
    assert pieces[-1] == "ST"


def test_the_stop_string_that_begins_first_wins(tokenizer: Tokenizer) -> None:
    pieces, matched = streamed(tokenizer, "say hello now", "lo", "hell")
    assert ("".join(pieces), matched) == ("say ", "hell")


def test_a_stop_string_inside_one_token_cuts_it(tokenizer: Tokenizer) -> None:
    pieces, matched = streamed(tokenizer, "hello", "ll")
    assert ("".join(pieces), matched) == ("he", "ll")


def test_a_stop_string_before_the_least_number_of_tokens_is_text(tokenizer: Tokenizer) -> None:
    pieces, matched = streamed(tokenizer, "a.b.c", ".", min_tokens=3)
    assert ("".join(pieces), matched) == ("a.b", ".")


def test_half_a_character_at_the_end_shows_as_a_replacement(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer.decoder(), ())
    assert stream.push(tokenizer.encode("é")[0], may_stop=True) == ""
    assert stream.flush() == "\ufffd"
