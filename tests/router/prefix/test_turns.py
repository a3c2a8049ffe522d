"""Plain chats without their template: what is learned of templates in use, and that it never differs from them."""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken

from router.errors import InvalidRequest
from router.prefix.cuts import Cuts
from router.prefix.template import ChatTemplate
from router.prefix.turns import Turns

TOKENS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<turn>", "<end>"]
CUTS = Cuts.of([AddedToken(token, special=True, normalized=False) for token in TOKENS], [], is_normalized=False)

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nOh<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = (
    "{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] + '\n\n' + m['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{{ '<|start_header_id|>assistant\n\n' }}"
)
ALTERNATING = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{{ '<turn>' + m.role + '\n' + m.content | trim + '<end>\n' }}{% endfor %}{{ '<turn>model\n' }}"
)
INSTRUCTIONS = (
    "{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set rest = messages[1:] %}"
    "{%- else %}{%- set rest = messages %}{%- endif %}{{- bos_token }}{%- for m in rest %}{%- if m.role == 'user' %}"
    "{%- if loop.last and system is defined %}{{- '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}{%- else %}"
    "{{- '[INST] ' + m.content + '[/INST]' }}{%- endif %}{%- else %}{{- ' ' + m.content + eos_token }}{%- endif %}"
    "{%- endfor %}"
)
# Looks for thoughts in answers, and treats answers after the last real question in another way.
THINKING = """{%- set ns = namespace(last=messages | length - 1, looking=true) %}
{%- for m in messages[::-1] %}{%- if ns.looking and m.role == "user" and not
(m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
{%- set ns.looking = false %}{%- set ns.last = messages | length - 1 - loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}{%- set content = m.content %}{%- if m.role == "assistant" %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if loop.index0 > ns.last %}{%- set content = '<think>\\n\\n</think>\\n\\n' + content %}{%- endif %}{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}{%- endfor %}{{- '<|im_start|>assistant\\n' }}"""
PHRASES = [
    "Hello",
    "",
    "  two \n",
    "<|im_end|>",
    "</think>",
    "<think>a</think>\nb",
    "x" * 500,
    "naïve 東京 🚂",
    "{{ m }}",
]
PHRASES += ["<tool_response>x</tool_response>", "<tool_response>", "[INST] ", "user", "system", "\n"]


@cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


def learned(source: str) -> Turns:
    turns = Turns.learn(template(source), CUTS)
    assert turns is not None
    return turns


def message(role: str, content: object, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


def rendered(source: str, chat: Sequence[Mapping[str, Any]]) -> str | None:
    try:
        return template(source).render(chat, {})
    except InvalidRequest:
        return None


@pytest.mark.parametrize("source", [CHATML, HEADERS, ALTERNATING, INSTRUCTIONS, THINKING])
def test_what_is_not_rendered_is_what_the_template_would_have_written(source: str) -> None:
    turns, rng, num_plain = learned(source), random.Random(4), 0
    for _ in range(800):
        roles = rng.choices(["system", "user", "assistant", "tool", "other"], [2, 9, 9, 1, 1], k=rng.randint(1, 7))
        if rng.random() < 0.7:
            roles = [("user", "assistant")[at % 2] for at in range(len(roles) | 1)]
        chat = [message(role, "".join(rng.choices(PHRASES, k=rng.randint(0, 3)))) for role in roles]
        segments = turns.segments(chat)
        if segments is not None:
            num_plain += 1
            assert "".join(segments) == rendered(source, chat)
            assert all(any(segment.startswith(token) for token in TOKENS) for segment in segments[1:])
    assert num_plain > 50


def test_each_turn_ends_a_segment() -> None:
    chat = [message("user", "one"), message("assistant", "two"), message("user", "three")]
    assert learned(CHATML).segments(chat) == [
        "<|im_start|>system\nOh<|im_end|>\n<|im_start|>user\none",
        "<|im_end|>\n<|im_start|>assistant\ntwo",
        "<|im_end|>\n<|im_start|>user\nthree",
        "<|im_end|>\n<|im_start|>assistant\n",
    ]
    # Nothing to cut at: no special token is between them.
    assert learned(INSTRUCTIONS).segments(chat[:1]) == ["<s>[INST] one[/INST]"]
    assert repr(learned(ALTERNATING)).startswith("<Turns of ")


@pytest.mark.parametrize(
    "chat",
    [
        [message("user", "a", name="kim")],
        [message("user", [{"type": "text", "text": "a"}])],
        [message("user", None)],
        [{"role": "user"}],
        [{"content": "a"}],
        [message("clown", "a")],
        [{"role": ["user"], "content": "a"}],
        [],
    ],
)
def test_a_chat_with_more_than_roles_and_texts_is_not_plain(chat: list[dict[str, Any]]) -> None:
    assert learned(CHATML).segments(chat) is None


def test_what_the_template_would_refuse_is_left_to_it() -> None:
    turns = learned(ALTERNATING)
    assert turns.segments([message("user", "a")]) is not None
    assert turns.segments([message("user", "a"), message("user", "b")]) is None
    assert turns.segments([message("system", "a"), message("user", "b")]) is None


def test_contents_that_the_template_looks_into_are_left_to_it() -> None:
    turns = learned(THINKING)
    assert {"</think>", "<tool_response>"} <= set(turns.refused)
    assert turns.segments([message("user", "a </think>")]) is None
    assert turns.segments([message("user", "a")]) is not None
    assert turns.segments([message("user", "a"), message("assistant", "b")]) is None
    assert learned(CHATML).refused == ()


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ m.content | lower }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content[:2000] }}{% endfor %}",
        "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
        "{{ messages | tojson }}",
        "{{ messages[-1].content }}",
        "the same for all",
        "{{ strftime_now('%H:%M:%S') }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ range(9) | random }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ raise_exception('never') }}",
    ],
)
def test_a_template_that_does_more_than_glue_is_not_replaced(source: str) -> None:
    turns = Turns.learn(template(source), CUTS)
    chats = [[message("user", content)] for content in PHRASES]
    chats += [[message("user", "a"), message("assistant", content), message("user", "b")] for content in PHRASES]
    for chat in chats:
        segments = None if turns is None else turns.segments(chat)
        assert segments is None or "".join(segments) == rendered(source, chat)
    if "loop.index" not in source and "[-1]" not in source:
        assert turns is None
