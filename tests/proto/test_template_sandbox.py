"""Templates that mean harm cost a bounded time (this run ends) and memory, and only the request."""

import resource
import sys

import pytest

from pointsman.chat_template import ChatTemplate, RenderError
from pointsman.template_sandbox import TemplateSandbox, budget

HELLO = [{"role": "user", "content": "hello"}]

NESTED = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
PAIRED = NESTED.replace("x=[1]", "x=[1], y=[1]").replace("{% endfor %}", "{% set ns.y = [ns.y, ns.y] %}{% endfor %}")
GROW = "{% for i in range(9999) %}"
HUGE = "{% set b = 'ab' * 500000 %}"
BAD = {
    "attributes": "{{ messages.nothing.at_all }}",
    "arithmetic": "{{ 1 / 0 }}",
    "types": "{{ messages[0].content + 1 }}",
    "interpreter": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ self.__init__.__globals__ }}",
    "change": "{{ messages.append(1) }}",
    "change of a message": "{{ messages[0].update({'content': 'x'}) }}",
    "file": "{% include 'file' %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "branching recursion": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops of the same list": "{% set l = range(99999)|list %}{% for i in l %}{% for j in l %}{% endfor %}{% endfor %}",
    "recursive loop": "{% set l = range(9999)|list %}{% for x in l recursive %}"
    "{% if loop.depth == 1 %}{{ loop(l) }}{% endif %}{% endfor %}",
    "repetition": "{{ 'a' * 10 ** 10 }}",
    "repeated list": "{{ 10 ** 9 * [1] }}",
    "power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "growing number": "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubling text": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling sum": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling list": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "nested list as JSON": NESTED + "{{ ns.x | tojson }}",
    "nested list": NESTED + "{{ ns.x }}",
    "nested list as text": NESTED + "{{ ns.x | string | length }}",
    "nested list joined on": NESTED + "{{ 'x' ~ ns.x }}",
    "nested list formatted": NESTED + "{{ '%s' % [ns.x] }}",
    "nested lists compared": PAIRED + "{{ ns.x == ns.y }}",
    "nested lists sought": PAIRED + "{{ ns.x in [ns.y] }}",
    "nested lists sorted": PAIRED + "{{ [ns.x, ns.y] | sort | length }}",
    "nested list in capitals": NESTED + "{{ ns.x | upper }}",
    "nested tuples as keys": NESTED.replace("[ns.x, ns.x]", "(ns.x, ns.x)").replace("[1]", "(1,)") + "{{ {ns.x: 1} }}",
    "nested mappings compared": NESTED.replace("[ns.x, ns.x]", "{'a': ns.x, 'b': ns.x}") + "{{ ns.x == ns.x | list }}",
    "nested by a call": NESTED.replace("[ns.x, ns.x]", "dict(a=ns.x, b=ns.x)") + "{{ ns.x | upper }}",
    "nested by repeating": NESTED.replace("[ns.x, ns.x]", "[ns.x] * 2") + "{{ ns.x | upper }}",
    "nested by a filter": NESTED.replace("[ns.x, ns.x]", "(ns.x * 2) | batch(2) | list * 2") + "{{ ns.x | upper }}",
    "nested by arguments": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}{{ varargs | upper }}"
    "{% endif %}{% endmacro %}{{ m(40, 1, 1) }}",
    "names of names": "{% set ns = namespace(x=[1] * 1000000) %}{{ ([ns] * 1000000) | upper | length + 'x' }}",
    "wide list of wide lists": "{% set l = [[[1] * 1000] * 1000] * 1000 %}{{ l == [[[1] * 1000] * 1000] * 1000 }}",
    "long text many times": HUGE + "{{ [b ~ 'x'] * 100000 == [b ~ 'x'] * 100000 }}",
    "many texts kept": HUGE + "{% set ns = namespace(x=[]) %}" + GROW + "{% set ns.x = ns.x + [b ~ i] %}{% endfor %}",
    "much output": HUGE + GROW + "{{ b }}{% endfor %}",
    "much output of a block": HUGE + "{% set x %}" + GROW + "{{ b }}{% endfor %}{% endset %}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "join": "{{ ('a' * 1000000).join(['b'] * 1000000) }}",
    "join filter": "{{ (['b' * 1000000] * 1000000) | join }}",
    "width": "{{ 'a'.center(10 ** 9) }}",
    "width filter": "{{ 'a' | center(1000000000) }}",
    "format": "{{ '{:>999999999}'.format('a') }}",
    "old format": "{{ '%999999999d' % 1 }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "starred format": "{{ '%*d' | format(999999999, 1) }}",
    "indent": "{{ ('a\n' * 100000) | indent(50000) }}",
    "sum of lists": "{{ ([[1] * 1000] * 1000000) | sum(start=[]) }}",
    "fill": "{{ [1] | batch(1000000000, 'x') | list }}",
    "translate": "{{ 'a'.translate({97: 'b' * 1000000}) }}",
    "lorem": "{{ lipsum(1000000) }}",
}


def refuses(source: str) -> bool:
    """When it is compiled or when it is rendered."""
    try:
        ChatTemplate(source, {}).render(HELLO, {})
    except (RenderError, ValueError):
        return True
    return False


@pytest.mark.parametrize("name", BAD)
def test_a_template_that_means_harm_costs_only_the_request(name: str) -> None:
    before_bytes = peak_bytes()
    assert refuses(BAD[name])
    assert peak_bytes() - before_bytes < 2**30
    assert ChatTemplate("{{ messages[0].content }}", {}).render(HELLO, {}) == "hello"


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(3) %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/3 2/3 3/3 "),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ none ~ missing }}{% endfor %}", "a1None"),
        ("{% for x in missing %}x{% else %}nothing{% endfor %}", "nothing"),
        ("{% for x in [[1], [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for x in 'abc' if x != 'b' %}{{ x }}{% endfor %}", "ac"),
        ("{{ ['a', 1] | join('-') }}{{ 'a-b'.split('-') | last }}{{ 'aXb'.replace('X', '-') }}", "a-1ba-b"),
        ("{{ '%s:%02d' % ('a', 5) }}{{ '{:>3}'.format('b') }}{{ 'a\nb' | indent(2) }}", "a:05  ba\n  b"),
        ("{{ [1, 2] | sum }}{{ [3, 1] | sort | first }}{{ messages | map(attribute='role') | list }}", "31['user']"),
        ("{{ 7 // 2 + 3 * 2 ** 3 - 1 }}{{ '-' * 3 }}{{ [1] + [2] }}", "26---[1, 2]"),
        (
            "{% set ns = namespace(x=[]) %}{% for m in messages %}{% set ns.x = ns.x + [m] %}{% endfor %}{{ ns.x }}",
            f"{HELLO}",
        ),
        (
            "{% for k, v in [('a', 1), ('b', messages)] %}{{ k }}{% endfor %}{{ {'a': messages}.a == messages }}",
            "abTrue",
        ),
        ("{% set a, b = 1, messages %}{{ a }}{{ 'user' in b[0].values() }}{{ (1, b) == (1, b) }}", "1TrueTrue"),
        ("{% set x %}a{% endset %}{% macro m(y) %}<{{ y }}>{% endmacro %}{{ m(x) ~ m(y='b') }}", "<a><b>"),
    ],
)
def test_what_templates_do_they_still_can(source: str, text: str) -> None:
    assert ChatTemplate(source, {}).render(HELLO, {}) == text


def test_a_long_conversation_fits() -> None:
    source = "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content | trim ~ '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "word " * 2000}] * 1000
    assert len(ChatTemplate(source, {}).render(messages, {})) == 1000 * (len("<user>\n") + 9999)


def test_budgets_are_each_renderings_own() -> None:
    template = TemplateSandbox().from_string("{% for i in range(99999) %}{% endfor %}")
    for _ in range(20):
        with budget():
            template.render()
