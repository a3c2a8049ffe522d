"""A client's body and headers as a `Request`, whatever transport they came by. Knows which fields of OpenAI's bodies
and which headers become fields of a request; knows nothing of sockets."""

from functools import lru_cache

import msgspec

from router import openai
from router.admission.terms import asked_band, asked_deadline, terms
from router.core import Asked, Headers, Request, Slo, Standing, Surface
from router.headers import new_id, sane_id
from router.routing.wishes import first_text, session_header, slo_of

# Embeddings have no such field.
_TELL_TIER = (Surface.CHAT, Surface.COMPLETIONS)


class _Said(msgspec.Struct, frozen=True, gc=False):
    """All that headers say."""

    asked: Asked
    id: str | None
    session: str | None
    slo: Slo | None


@lru_cache(maxsize=4096)
def _said(headers: Headers) -> _Said:
    """The same headers come again and again. Raises InvalidRequest that names the header."""
    return _Said(terms(headers), sane_id(headers), session_header(headers), slo_of(headers))


def new_request(
    surface: Surface, body: bytes, headers: Headers, now: float, deadline: float, standing: Standing | None = None
) -> Request:
    """`now` and the latest `deadline` in seconds of the router's clock; the request may ask for a sooner one.

    Raises InvalidRequest that names the field."""
    fields, said = openai.peek(body, surface), _said(headers)
    session = said.session
    if session is None:
        session = first_text(
            fields.prompt_cache_key, fields.previous_response_id, fields.user, fields.safety_identifier
        )
    return Request(
        id=said.id or new_id(),
        surface=surface,
        model=fields.model,
        body=body,
        arrived=now,
        deadline=asked_deadline(said.asked, fields.timeout, now, deadline),
        is_stream=fields.stream is True,
        tells_usage=fields.stream_options is not None and fields.stream_options.include_usage is True,
        names_tier=fields.service_tier is not None and surface in _TELL_TIER,
        messages=fields.messages if surface is Surface.CHAT else None,
        prompt=fields.prompt if surface is Surface.COMPLETIONS else fields.input,
        template_options=fields.template_options if fields.has_options else {},
        cache_salt=fields.cache_salt,
        priority=fields.priority or 0,
        band=asked_band(said.asked, fields.priority, fields.service_tier),
        max_tokens=fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens,
        session=session,
        slo=said.slo,
        headers=headers,
        asked=said.asked,
        standing=standing,
    )
