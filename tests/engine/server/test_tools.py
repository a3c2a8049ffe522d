import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.tools import CallPiece, ToolFormat, ToolReader, format_of

HERMES, LLAMA3 = ToolFormat.HERMES, ToolFormat.LLAMA3

Read = tuple[str, list[tuple[str | None, str]]]


def read(parts: list[str], format: ToolFormat = HERMES, max_calls: int | None = None) -> Read:
    """What was said, and each call's name and arguments, put together as a client does."""
    reader = ToolReader(format, frozenset({"f", "g"}), max_calls)
    said, calls = "", list[tuple[str | None, str]]()

    def pieces() -> Iterator[str | CallPiece]:
        for part in parts:
            yield from reader.push(part)
        yield from reader.flush()

    for piece in pieces():
        if isinstance(piece, str):
            said += piece
        elif piece.name is not None:
            assert (piece.index, piece.arguments) == (len(calls), "")
            assert piece.id is not None
            calls.append((piece.name, ""))
        else:
            assert piece.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
    return said, calls


CASES: list[tuple[ToolFormat, str, Read]] = [
    (HERMES, "no call at all\n", ("no call at all\n", [])),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', ("", [("f", '{"x": 1}')])),
    (HERMES, 'Sure.\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>', ("Sure.", [("f", "{}")])),
    (HERMES, '<tool_call>{"arguments": {"a": "}"}, "name": "f"}</tool_call>', ("", [("f", '{"a": "}"}')])),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 2}"}</tool_call>', ("", [("f", '{"x": 2}')])),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', ("", [("f", "{}")])),
    (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {"x": [1, {"y": "\\"}"}]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        ("", [("f", '{"x": [1, {"y": "\\"}"}]}'), ("g", "{}")]),
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}} after', (" after", [("f", "{}")])),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1', ("", [("f", '{"x": 1')])),
    (HERMES, "<tool_call>oops</tool_call>", ("<tool_call>oops</tool_call>", [])),
    (HERMES, '<tool_call>{"name": 3}</tool_call>', ('<tool_call>{"name": 3}</tool_call>', [])),
    (HERMES, '<tool_call>{"nam', ('<tool_call>{"nam', [])),
    (HERMES, "a < b <tool", ("a < b <tool", [])),
    (LLAMA3, '{"name": "f", "parameters": {"x": 1}}', ("", [("f", '{"x": 1}')])),
    (LLAMA3, '\n{"type": "function", "name": "f", "parameters": {}}', ("", [("f", "{}")])),
    (
        LLAMA3,
        '{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}\n',
        ("", [("f", '{"x": 1}'), ("g", "{}")]),
    ),
    (LLAMA3, '{"answer": {"name": "f"}}', ('{"answer": {"name": "f"}}', [])),
    (LLAMA3, '{"name": "unknown", "parameters": {}}', ('{"name": "unknown", "parameters": {}}', [])),
    (LLAMA3, 'Use {"name": "f", "parameters": {}}', ('Use {"name": "f", "parameters": {}}', [])),
    (LLAMA3, "", ("", [])),
    (LLAMA3, "hello ; {", ("hello ; {", [])),
]


@pytest.mark.parametrize(("format", "text", "expected"), CASES)
def test_an_answer_is_read_into_what_is_said_and_the_calls(format: ToolFormat, text: str, expected: Read) -> None:
    assert read([text], format) == expected
    assert read(list(text), format) == expected


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 120)))
def test_it_does_not_matter_where_the_text_is_cut(case: tuple[ToolFormat, str, Read], cuts: list[int]) -> None:
    format, text, expected = case
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert read([text[a:b] for a, b in pairwise(bounds)], format) == expected


@given(st.text(alphabet='<>tool_cal/{}":,name arguments\\ \n[]f1', max_size=80), st.sampled_from(ToolFormat))
def test_whatever_a_model_writes_the_reader_ends_and_loses_no_plain_text(text: str, format: ToolFormat) -> None:
    said, calls = read(list(text), format)
    assert said == text or calls


@given(
    st.dictionaries(
        st.text(max_size=5), st.recursive(st.none() | st.text(max_size=9) | st.integers(), st.lists, max_leaves=5)
    )
)
def test_any_arguments_come_through_as_json(arguments: dict[str, object]) -> None:
    text = f"<tool_call>\n{json.dumps({'name': 'f', 'arguments': arguments})}\n</tool_call>"
    said, [(name, written)] = read([text[start : start + 3] for start in range(0, len(text), 3)])
    assert (said, name, json.loads(written)) == ("", "f", arguments)


def test_arguments_are_streamed_as_they_come() -> None:
    reader = ToolReader(HERMES, frozenset({"f"}))
    list(reader.push('<tool_call>{"name": "f", "arguments": {"city": "Par'))
    assert list(reader.push("is")) == [CallPiece(0, "is")]


def test_what_may_be_an_opening_waits_and_other_text_does_not() -> None:
    reader = ToolReader(HERMES, frozenset())
    assert list(reader.push("one <tool_")) == ["one"]
    assert list(reader.push("box>")) == [" <tool_box>"]


def test_calls_beyond_the_most_are_dropped() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    assert read([call, call], max_calls=1) == ("", [("f", '{"x": 1}')])


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}<|python_tag|>{% endif %}", LLAMA3),
        ("{% if tools %}{{ tools }}{% endif %}", None),
        ("{{ messages }}", None),
        (None, None),
    ],
)
def test_the_template_tells_the_form_of_calls(template: str | None, format: ToolFormat | None) -> None:
    assert format_of(template) is format
