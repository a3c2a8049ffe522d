from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.template_weights import Weights

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=200)
VALUES = st.recursive(
    SCALARS, lambda items: st.lists(items) | st.tuples(items, items) | st.dictionaries(st.text(), items), max_leaves=30
)


def weight(value: Any) -> int:
    """By the definition, with nothing remembered."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    if isinstance(value, dict):
        return 1 + sum(weight(key) + weight(item) for key, item in value.items())
    return 1 + sum(map(weight, value)) if isinstance(value, list | tuple) else 1


@given(VALUES, VALUES)
def test_all_that_is_in_a_value_is_counted_each_time_that_it_is_there(first: Any, second: Any) -> None:
    weights = Weights()
    for value in (first, second, [first, second, first], {"a": [first], "b": first}):
        assert weights.of(value) == weights.of(value) == weight(value)


def test_what_is_shared_without_end_is_weighed_at_once() -> None:
    weights = Weights()
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    assert weights.of(value) > 2**60
    assert repr(weights) == "<Weights 61 known>"


@pytest.mark.parametrize("view", [OrderedDict.keys, OrderedDict.values, OrderedDict.items])
def test_views_weigh_what_they_show(view: Any) -> None:
    shown = view(OrderedDict(a=["x" * 640], b="y"))
    assert Weights().of(shown) == 1 + sum(map(weight, shown))
