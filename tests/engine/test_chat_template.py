from datetime import datetime
from typing import Any

import pytest

from engine.chat_template import ChatTemplate, PromptError
from engine.model.config import ModelError
from tests.engine.model.tiny_tokenizer import TEMPLATE

PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages or [], variables)


def test_the_template_sees_roles_contents_variables_and_special_tokens() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert render("{{ bos_token }}" + PLAIN + "{{ mood }}", messages, mood="!") == "<s>[user:hi][assistant:ho]!"
    assert render("{{ bos_token }}", bos_token="<b>") == "<b>"
    assert render("{% if eos_token is defined %}x{% endif %}") == ""


def test_text_parts_become_one_text_with_a_line_each() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    messages = [{"role": "user", "content": parts}]
    assert render(TEMPLATE, messages).endswith("<|im_start|>user\na\nb\nc<|im_end|>\n")
    assert messages[0]["content"] is parts


@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": None}])
def test_no_content_is_an_empty_text(message: dict[str, Any]) -> None:
    assert render(TEMPLATE, [message]).endswith("<|im_start|>assistant\n<|im_end|>\n")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (3, r"messages\[1\]\.content must be a string or a list of text parts"),
        ([{"type": "image_url"}], r"messages\[1\]\.content\[0\] is of type 'image_url'; .* only text parts"),
        ([{"type": "text", "text": "a"}, 3], r"messages\[1\]\.content\[1\] is of type 'int'"),
        ([{"type": "text"}], r"messages\[1\]\.content\[0\] is of type 'text'"),
    ],
)
def test_content_that_is_not_text_is_refused_by_its_place(content: object, complaint: str) -> None:
    with pytest.raises(PromptError, match=complaint):
        render(PLAIN, [{"role": "user", "content": ""}, {"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("arguments", "seen"), [('{"x": 1}', '{"x": 1}'), ("", "{}"), ("{", '"{"'), ({"y": 2}, '{"y": 2}'), (None, "null")]
)
def test_a_tool_call_s_arguments_are_seen_as_an_object(arguments: object, seen: str) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", [message]) == seen


@pytest.mark.parametrize("calls", [["x"], [{}], [{"function": {}}], [{"function": 3}], "x", None])
def test_tool_calls_of_another_shape_pass_unchanged(calls: object) -> None:
    assert render("{{ messages[0].tool_calls == calls }}", [{"tool_calls": calls}], calls=calls) == "True"


def test_what_a_model_learns_to_say_is_plain_content_in_a_prompt() -> None:
    assert render("a{% generation %}b{{ 1 + 1 }}{% endgeneration %}c{{ documents }}") == "ab2cNone"


def test_blocks_leave_no_blank_lines() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_loops_can_break_and_continue() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}"
    )
    assert render(source + "{% endfor %}") == "023"


def test_json_keeps_every_character_and_the_order_of_keys() -> None:
    tools = [{"name": "é<&>'", "a": [1, None]}]
    assert render("{{ tools | tojson }}", tools=tools) == '[{"name": "é<&>\'", "a": [1, null]}]'
    assert render("{{ tools[0].a | tojson(indent=1) }}", tools=tools) == "[\n 1,\n null\n]"


def test_the_date_is_there_for_templates_that_write_it() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year - 1), str(datetime.now().year)}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ 'a' + 1 }}", "refuses these messages"),
        ("{{ messages[0].role }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_whatever_a_template_raises_is_the_client_s_prompt_error(source: str, complaint: str) -> None:
    with pytest.raises(PromptError, match=complaint):
        render(source)


def test_a_template_that_does_not_parse_is_a_fault_of_the_model() -> None:
    with pytest.raises(ModelError, match=r"does not parse: line 2: "):
        ChatTemplate("a\n{% if %}", {})


def test_its_repr_tells_its_size() -> None:
    assert repr(ChatTemplate("abc", {})) == "<ChatTemplate 3 characters>"
