import argparse

import pytest

from loadtest.engine.__main__ import dtypes


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("float32", ("float32",)),
        ("bfloat16", ("float32", "bfloat16")),
        ("bfloat16,float32", ("float32", "bfloat16")),
    ],
)
def test_float32_is_always_among_what_is_measured(text: str, measured: tuple[str, ...]) -> None:
    assert dtypes(text) == measured


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="float8 is none of float32, bfloat16"):
        dtypes("float32,float8")
