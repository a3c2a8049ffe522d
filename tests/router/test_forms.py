"""The model in a body, JSON or form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.forms import for_model, model_in


def form(*parts: tuple[str, bytes]) -> bytes:
    found = [
        b'--b0\r\nContent-Disposition: form-data; name="%b"\r\n%b\r\n%b\r\n'
        % (name.encode(), b"" if name == "model" else b"Content-Type: audio/wav\r\n", value)
        for name, value in parts
    ]
    return b"".join(found) + b"--b0--\r\n"


def test_json_keeps_every_other_byte() -> None:
    body = b'{"query":"\\u00e9","model":"a","x":1.50}'
    assert model_in(body) == "a"
    assert for_model(body, "b") == body.replace(b'"a"', b'"b"')
    assert model_in(b'{"query":"q"}') is None


@given(st.binary(max_size=200).filter(lambda sound: b"model" not in sound), st.booleans())
def test_a_form_keeps_every_other_byte(sound: bytes, is_first: bool) -> None:
    parts = [("model", b"whisper"), ("file", sound)]
    body = form(*(parts if is_first else reversed(parts)))
    assert model_in(body) == "whisper"
    assert for_model(body, "llama/v2") == body.replace(b"\r\nwhisper\r\n", b"\r\nllama/v2\r\n")


def test_a_form_without_a_model_names_none_and_gets_none() -> None:
    body = form(("file", b"x"), ("models", b"y"))
    assert model_in(body) is None
    assert for_model(body, "a") == body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"sound", "neither JSON nor a form"),
        (b'{"model": 5}', "Expected `str | null`"),
        (form(("model", b"a"), ("model", b"b")), "more than once"),
        (form(("model", b"a"))[:-9], "ends within"),
    ],
)
def test_what_is_neither_is_said(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        model_in(body)
