"""Chat templates as Hugging Face's Transformers renders them, and templates that mean harm."""

from typing import Any

import pytest

from router.errors import InvalidRequest
from router.prefix.source import SourceError
from router.prefix.template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: Any = HELLO, **options: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, options)


def test_blocks_take_their_own_lines_away() -> None:
    assert render("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}") == "user\n"


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", {}, "<s>hello</s>"),
        ("{% if add_generation_prompt %}>{% endif %}", {}, ">"),
        ("{% if add_generation_prompt %}>{% endif %}", {"add_generation_prompt": False}, ""),
        ("{% if tools is not none %}tools{% endif %}{{ documents is none }}", {}, "True"),
        ("{{ tools | tojson }}", {"tools": [{"b": "<é>", "a": 1}]}, '[{"b": "<é>", "a": 1}]'),
        ("{{ tools | tojson(indent=2) }}", {"tools": {"a": 1}}, '{\n  "a": 1\n}'),
        ("{{ enable_thinking is defined and not enable_thinking }}", {"enable_thinking": False}, "True"),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", {}, "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", {}, "hello!"),
        ("{{ strftime_now('%Y') | length }}", {}, "4"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n * 3 %}{{ ns.n ** 2 }}{{ '-' * 3 }}", {}, "9---"),
        ("{{ 'a' ~ messages[0]['missing'] ~ 'b' }}", {}, "ab"),
    ],
)
def test_it_renders_as_transformers_does(source: str, options: dict[str, object], expected: str) -> None:
    assert render(source, **options) == expected


def test_what_the_template_refuses_is_an_invalid_request_naming_messages() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 9 * [1] }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'file' %}",
    ],
)
def test_a_template_that_fails_or_means_harm_costs_only_the_request(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)
    assert render("{{ messages[0].content }}") == "hello"


def test_a_template_cannot_change_the_messages() -> None:
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(InvalidRequest):
        render("{{ messages[0].update({'content': 'changed'}) }}", messages)
    assert messages == [{"role": "user", "content": "hello"}]


def test_it_tells_what_it_spells_and_whether_it_may_change_by_itself() -> None:
    template = ChatTemplate("a{% if m == 'x' or 'y' in m %}{{ bos_token ~ 'z' | replace('q', '') }}{% endif %}", {})
    assert template.literals == {"x", "y", "z", "q", ""}
    assert template.is_steady
    for source in ("{{ strftime_now('%d') }}", "{{ [1, 2] | random }}"):
        assert not ChatTemplate(source, {}).is_steady


@pytest.mark.parametrize("source", ["{% if %}", "{{ ", "{% for %}", "{% endif %}", "{{ 'a' | no_such_filter }}"])
def test_a_template_that_does_not_parse_is_refused_when_loaded(source: str) -> None:
    with pytest.raises(SourceError, match=r"`chat_template`, line 1"):
        ChatTemplate(source, {})
