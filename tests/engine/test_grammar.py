import json
from pathlib import Path

import pytest

from engine.grammar import MAX_GRAMMAR_CHARS, Grammar, GrammarError, Grammars
from engine.structure import Structure
from engine.tokenizer import Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA, TOKENS

WIDTH = len(TOKENS) + 20
"""Of the logits: models pad their vocabulary."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", METADATA, {})
    return Tokenizer.load(path)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.to_json, WIDTH, tokenizer.eos_token_ids)


def allowed(structure: Structure) -> set[int]:
    mask = structure.mask()
    return {token for token in range(WIDTH) if mask[token // 32] >> token % 32 & 1}


def accepts(grammars: Grammars, tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:
    """Token by token, each of which the mask allows, up to an end that it allows."""
    structure = grammars.compile(grammar, "field")
    for token_id in tokenizer.encode(text):
        if token_id not in allowed(structure) or not structure.accept(token_id):
            return False
    return structure.is_complete or tokenizer.eos_token_ids[0] in allowed(structure)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (Grammar.json_schema(SCHEMA), '{"name": "Ada", "age": 36}', '{"name": "Ada"}'),
        (Grammar.json_schema(json.dumps(SCHEMA)), '{"name":"é","age":0}', '{"name": "Ada", "age": -1}'),
        (Grammar.json_schema({"enum": ["a", 1]}), "1", "2"),
        (Grammar.json_object(), '{\n  "a": [1, {"b": null}]\n}', "[1]"),
        (Grammar.regex(r"\d{3}-[a-c]+"), "123-abc", "12-abc"),
        (Grammar.choice(["yes", 'no, "never"', "maybe\n"]), 'no, "never"', "nope"),
        (Grammar.lark('start: "a" b\nb: /[0-9]/'), "a7", "ab"),
        (Grammar.lark('root ::= "x" [0-9]+'), "x12", "y"),
    ],
)
def test_what_keeps_to_it_is_allowed_and_nothing_else(
    grammars: Grammars, tokenizer: Tokenizer, grammar: Grammar, good: str, bad: str
) -> None:
    assert accepts(grammars, tokenizer, grammar, good)
    assert not accepts(grammars, tokenizer, grammar, bad)


def test_white_space_cannot_go_on_forever(grammars: Grammars, tokenizer: Tokenizer) -> None:
    assert not accepts(grammars, tokenizer, Grammar.json_object(), "{" + " " * 100 + "}")


def test_a_complete_output_can_only_end(grammars: Grammars, tokenizer: Tokenizer) -> None:
    structure = grammars.compile(Grammar.choice(["a", "b"]), "field")
    assert {TOKENS[token] for token in allowed(structure)} == {"a", "b"}
    assert structure.accept(TOKENS.index("a"))
    assert structure.is_complete
    assert set(tokenizer.eos_token_ids) & allowed(structure)


def test_a_token_that_is_not_allowed_is_not_accepted(grammars: Grammars) -> None:
    assert not grammars.compile(Grammar.choice(["a"]), "field").accept(TOKENS.index("b"))


def test_copies_go_their_own_ways(grammars: Grammars) -> None:
    first = grammars.compile(Grammar.choice(["aa", "bb"]), "field")
    second = first.copy()
    assert first.accept(TOKENS.index("a"))
    assert second.accept(TOKENS.index("b"))
    assert {TOKENS[token] for token in allowed(first)} == {"a"}
    assert {TOKENS[token] for token in allowed(second)} == {"b"}


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.json_schema({"type": "thing"}),
        Grammar.json_schema({"$ref": "http://127.0.0.1:1/x"}),
        Grammar.json_schema({"type": "array", "uniqueItems": True}),
        Grammar.regex("("),
        Grammar.lark("start: missing"),
        Grammar.lark('start: "' + "a" * MAX_GRAMMAR_CHARS + '"'),
    ],
)
def test_what_cannot_be_followed_is_refused_before_it_is_queued(grammars: Grammars, grammar: Grammar) -> None:
    with pytest.raises(GrammarError):
        grammars.compile(grammar, "field")


def test_what_cannot_even_be_written_down_is_refused_at_once() -> None:
    with pytest.raises(GrammarError, match="not JSON"):
        Grammar.json_schema("{")
    with pytest.raises(GrammarError, match="does not parse"):
        Grammar.lark('root ::= ("a"')


def test_only_so_many_are_kept(tokenizer: Tokenizer) -> None:
    few = Grammars(tokenizer.to_json, WIDTH, tokenizer.eos_token_ids)
    for number in range(70):
        few.compile(Grammar.choice([str(number)]), "field")
    assert repr(few) == "<Grammars 64 compiled>"


NESTED = Grammar.lark("start: (a{0,1000}){0,1000}\na: (b{0,1000}){0,1000}\nb: /./")
"""Each token may stand in ever more places, of which a parser looks at so many: it gives up after a few."""


CROWDED = Grammar.regex("(.{1,900}(e.{1,900}){9}){99}")
"""Each token costs expressions, of which there may be so many among all that follow one compiled grammar."""


def follow(structure: Structure) -> int:
    """Takes the letter e again and again; the number of times that it was accepted."""
    for count in range(200):
        if not structure.accept(TOKENS.index("e")):
            return count
        structure.mask()
    raise AssertionError(structure.matcher.stop_reason())


def test_a_grammar_that_takes_too_much_to_follow_never_passes_for_a_complete_output(grammars: Grammars) -> None:
    structure = grammars.compile(NESTED, "guided_grammar")
    assert follow(structure) > 0
    # Which of its limits it meets first depends on how fast the machine is.
    assert structure.fault.startswith("the output cannot be kept to it: ")


def test_a_grammar_whose_matcher_gave_up_can_be_asked_for_again(grammars: Grammars) -> None:
    for _ in range(2):
        structure = grammars.compile(CROWDED, "guided_regex")
        assert follow(structure) > 50
        assert structure.fault.endswith("lexer error: too many expressions constructed")


def test_masks_that_take_too_long_end_their_output(grammars: Grammars) -> None:
    structure = grammars.compile(Grammar.choice(["aaa"]), "guided_choice")
    assert structure.accept(TOKENS.index("a"))
    structure.mask()
    structure.spare_s = 0.0
    assert not structure.accept(TOKENS.index("a"))
    assert structure.fault == "the output cannot be kept to it: to find the next token takes too long"


def test_choices_may_be_thousands_and_of_any_characters(grammars: Grammars, tokenizer: Tokenizer) -> None:
    texts = ["[a-z]+", "a|b", "(?=x)", "\\d", "a#b & c~d", "é 漢字", *map(str, range(3000))]
    for text in (*texts[:6], "2999"):
        assert accepts(grammars, tokenizer, Grammar.choice(texts), text)
    assert not accepts(grammars, tokenizer, Grammar.choice(texts), "a")
