"""Chat templates as Hugging Face's Transformers renders them."""

from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pointsman.chat_template import ChatTemplate, RenderError, TemplateSourceError, plain_message, text_of_part
from tests.proto.templates import FAMILIES, SPECIAL_TOKENS

HELLO = [{"role": "user", "content": "hello"}]
SYSTEM = {"role": "system", "content": " Be brief.\n"}
ANSWER = {"role": "assistant", "content": "\nSo <be> it & \N{SNOWMAN} "}
REASONED = {"role": "assistant", "content": "42", "reasoning_content": "\nlong thought\n"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": [1, "é<"], "a": None}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": '{"sum": 3}'}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "a < b & é", "parameters": {"type": "object"}}}
]
DOCUMENTS = [{"title": "One", "text": "first"}, {"title": "Two", "text": "second\n"}]

CHATS: list[list[dict[str, Any]]] = [
    HELLO,
    [SYSTEM, *HELLO],
    [*HELLO, ANSWER, *HELLO],
    [SYSTEM, *HELLO, ANSWER, *HELLO, REASONED],
    [*HELLO, CALLED, RESULT],
    [*HELLO, CALLED, RESULT, RESULT, ANSWER, *HELLO],
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": False},
    {"tools": TOOLS},
    {"documents": DOCUMENTS},
    {"enable_thinking": False, "date_string": "1 May 2030"},
    {"tools": TOOLS, "documents": DOCUMENTS, "add_generation_prompt": False, "enable_thinking": True},
]


def render(source: str, messages: Any = HELLO, **options: object) -> str:
    return ChatTemplate(source, SPECIAL_TOKENS).render(messages, options)


def as_transformers(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    """None where the template raises."""
    variables: dict[str, Any] = {"add_generation_prompt": True, **SPECIAL_TOKENS, **options}
    try:
        texts = render_jinja_template([messages], chat_template=source, **variables)[0]
    except Exception:
        return None
    return str(texts[0])


def as_we_do(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    template = ChatTemplate(source, SPECIAL_TOKENS)
    plain = [plain_message(each, text_of, takes_parts=template.takes_parts) for each in messages]
    try:
        return template.render(plain, options)
    except RenderError:
        return None


def text_of(part: object) -> str:
    text = text_of_part(part)
    assert text is not None
    return text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", OPTIONS)
def test_each_family_is_rendered_as_transformers_renders_it(family: str, options: dict[str, Any]) -> None:
    source = FAMILIES[family]
    texts = [as_transformers(source, chat, options) for chat in CHATS]
    assert [as_we_do(source, chat, options) for chat in CHATS] == texts
    assert len(set(texts) - {None}) > 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("content", ["So far, ", "so", " trailing \n"])
def test_a_last_message_is_continued_as_transformers_does_it(family: str, content: str) -> None:
    chat = [*HELLO, {"role": "assistant", "content": content}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    text = as_we_do(FAMILIES[family], chat, options)
    assert text == as_transformers(FAMILIES[family], chat, options)
    assert text is not None
    assert text.endswith(content.strip() if family in ("headers", "inst", "parts") else content)


def test_a_content_that_the_template_drops_cannot_be_continued() -> None:
    with pytest.raises(RenderError, match="continue_final_message"):
        render("{{ messages[0].role }}", continue_final_message=True)


PIECES = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]


def test_parts_are_lines_of_one_text_unless_the_template_takes_them_itself() -> None:
    takes = {family: ChatTemplate(source, SPECIAL_TOKENS).takes_parts for family, source in FAMILIES.items()}
    assert takes == {"chatml": False, "headers": False, "inst": False, "parts": True}
    chat = [{"role": "user", "content": PIECES}]
    assert "user\na\nb\nc<|im_end|>" in str(as_we_do(FAMILIES["chatml"], chat, {}))
    parts = [{"role": "user", "content": [{"type": "text", "text": text} for text in "abc"]}]
    assert as_we_do(FAMILIES["parts"], chat, {}) == as_transformers(FAMILIES["parts"], parts, {})


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ({"role": "user", "content": PIECES}, {"role": "user", "content": "a\nb\nc"}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": None, "name": None}, {"role": "assistant", "content": ""}),
        (
            {"role": "assistant", "content": "x", "reasoning": "r"},
            {"role": "assistant", "content": "x", "reasoning": "r", "thinking": "r", "reasoning_content": "r"},
        ),
    ],
)
def test_messages_are_made_plain(message: dict[str, Any], plain: dict[str, Any]) -> None:
    before = dict(message)
    assert plain_message(message, text_of, takes_parts=False) == plain
    assert message == before


@pytest.mark.parametrize(
    ("arguments", "seen"), [('{"x": 1}', {"x": 1}), ("", {}), ("{", "{"), ({"y": 2}, {"y": 2}), (None, {})]
)
def test_the_arguments_of_a_call_become_an_object(arguments: object, seen: object) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    (call,) = plain_message(message, text_of, takes_parts=False)["tool_calls"]
    assert call["function"]["arguments"] == seen


@pytest.mark.parametrize("calls", [["x"], [{}], [{"function": {}}], [{"function": 3}], "x"])
def test_calls_of_another_shape_pass_unchanged(calls: object) -> None:
    assert plain_message({"role": "a", "tool_calls": calls}, text_of, takes_parts=False)["tool_calls"] == calls


@pytest.mark.parametrize("part", [{"type": "image_url"}, {"type": "text"}, {"type": "text", "text": 3}, 3, None])
def test_a_part_that_is_no_text_has_none(part: object) -> None:
    assert text_of_part(part) is None


def test_a_list_of_no_tools_is_none() -> None:
    assert render("{{ tools is none }}{{ documents is none }}", tools=[], documents=[]) == "TrueTrue"


def test_what_it_may_look_at_is_known() -> None:
    template = ChatTemplate("a{% if m == 'x' or 'y' in m %}{{ bos_token ~ 'z' | replace('q', '') }}{% endif %}", {})
    assert template.literals == {"x", "y", "z", "q", ""}
    assert template.is_steady
    assert not template.takes_tools
    assert ChatTemplate("{% for tool in tools %}{% endfor %}", {}).takes_tools
    for source in ("{{ strftime_now('%d') }}", "{{ [1, 2] | random }}"):
        assert not ChatTemplate(source, {}).is_steady


def test_the_date_is_there_for_templates_that_write_it() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year - 1), str(datetime.now().year)}


@pytest.mark.parametrize("source", ["{% if %}", "{{ ", "{% for %}", "{% endif %}", "{{ 'a' | no_such_filter }}"])
def test_a_template_that_does_not_parse_is_refused_when_loaded(source: str) -> None:
    with pytest.raises(TemplateSourceError, match=r"line 1"):
        ChatTemplate(source, {})


def test_its_repr_tells_its_size() -> None:
    assert repr(ChatTemplate("abc", {})) == "<ChatTemplate 3 characters>"
