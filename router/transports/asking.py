"""A client's body and headers as a `Request`, whatever transport they came by. Knows which fields of OpenAI's bodies
and which headers become fields of a request; knows nothing of sockets."""

from router import openai
from router.admission.terms import asked_band, asked_deadline
from router.core import Headers, Request, Standing, Surface
from router.headers import request_id
from router.routing.wishes import session_of, slo_of


def new_request(
    surface: Surface, body: bytes, headers: Headers, now: float, deadline: float, standing: Standing | None = None
) -> Request:
    """`now` and the latest `deadline` in seconds of the router's clock; the request may ask for a sooner one.

    Raises InvalidRequest that names the field."""
    fields = openai.peek(body, surface)
    return Request(
        id=request_id(headers),
        surface=surface,
        model=fields.model,
        body=body,
        arrived=now,
        deadline=asked_deadline(headers, fields.timeout, now, deadline),
        is_stream=bool(fields.stream),
        messages=fields.messages if surface is Surface.CHAT else None,
        prompt=fields.prompt if surface is Surface.COMPLETIONS else fields.input,
        template_options=fields.template_options,
        cache_salt=fields.cache_salt,
        priority=fields.priority or 0,
        band=asked_band(headers, fields.priority, fields.service_tier),
        max_tokens=fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens,
        session=session_of(headers, fields.prompt_cache_key, fields.previous_response_id, fields.user),
        slo=slo_of(headers),
        headers=headers,
        standing=standing,
    )
