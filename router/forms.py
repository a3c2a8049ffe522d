"""The model that a body names, be it JSON or a multipart form as audio comes in, and the same body with another. Knows
the bytes of both; knows nothing of routes."""

import re

import msgspec

from router.errors import InvalidRequest
from router.openai import invalid_field, with_model

_MODEL = re.compile(
    rb'\r\ncontent-disposition:[^\r\n]*; *name=(?:"model"|model(?=[;\r]))[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n', re.I
)


class _Named(msgspec.Struct):
    model: str | None = None


_NAMED = msgspec.json.Decoder(_Named)


def model_in(body: bytes) -> str | None:
    """None where it names none. Raises InvalidRequest for a body that is neither, or that names two."""
    if _is_form(body):
        found = _place_in_form(body)
        return None if found is None else body[slice(*found)].decode("utf-8", "replace")
    try:
        return _NAMED.decode(body).model
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is neither JSON nor a form: {error}.") from None


def for_model(body: bytes, model: str) -> bytes:
    """The body for another model: every other value of it keeps its very bytes. A form that names none gets none."""
    if not _is_form(body):
        return with_model(body, model)
    found = _place_in_form(body)
    return body if found is None else body[: found[0]] + model.encode() + body[found[1] :]


def _is_form(body: bytes) -> bool:
    """By its first boundary: no JSON begins so, whatever its client calls it."""
    return body[:8].lstrip(b"\r\n").startswith(b"--")


def _place_in_form(body: bytes) -> tuple[int, int] | None:
    parts = list(_MODEL.finditer(body))
    if len(parts) > 1:
        raise InvalidRequest("The form names `model` more than once.", param="model")
    if not parts:
        return None
    start = parts[0].end()
    end = body.find(b"\r\n--", start)
    if end < 0:
        raise InvalidRequest("The form ends within `model`.", param="model")
    return start, end
