"""`POST /admin/explain`: what would be decided for a request now, on which replicas and why. Knows a running router's
rooms and OpenAI's bodies; sends nothing, counts nothing, remembers nothing."""

from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from router.choice import Explanation, Weighed
from router.core import Demand, Headers, Surface
from router.errors import InvalidRequest, PointsmanError, UnknownModel
from router.openai import error_body
from router.transports.asking import new_request

if TYPE_CHECKING:
    from router.app import Router

Json = Mapping[str, object]
Explain = Callable[[bytes, Headers], Awaitable[tuple[int, bytes]]]
"""Status and JSON for a body and its headers."""
# What a body must have, and what it then is.
_SURFACES = {"messages": Surface.CHAT, "prompt": Surface.COMPLETIONS, "input": Surface.EMBEDDINGS}
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def add_explain_route(app: web.Application, explain: Explain) -> None:
    async def page(request: web.Request) -> web.Response:
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        status, answer = await explain(await request.read(), headers)
        return web.Response(status=status, body=answer, content_type="application/json")

    app.router.add_post("/admin/explain", page)


def explainer(router: "Router") -> Explain:
    async def explain(body: bytes, headers: Headers) -> tuple[int, bytes]:
        try:
            demand = await _demand(router, body, headers)
        except PointsmanError as error:
            return error.status, error_body(error)
        return 200, msgspec.json.encode(shown(router.placement.explain(demand)))

    return explain


def shown(explanation: Explanation) -> Json:
    """The cheapest first, then those that may not be chosen."""
    demand, decision = explanation.demand, explanation.decision
    prompt = demand.prompt
    chosen = None if decision is None else decision.replica.id
    order = sorted(explanation.weighed, key=lambda each: (each.excluded is not None, each.cost or 0.0))
    return {
        "model": demand.pool.model,
        "adapter": demand.adapter,
        "session": demand.request.session,
        "prompt_tokens": prompt.num_tokens,
        "template_tokens": prompt.num_template_tokens,
        "is_exact": prompt.is_exact,
        "expected_output_tokens": round(explanation.expected_output_tokens),
        "policy": explanation.policy,
        "chosen": chosen,
        "unit": next((each.unit for each in explanation.weighed), None),
        "reason": "no replica may take it now: it would wait" if decision is None else decision.reason,
        "candidates": [_row(each, chosen) for each in order],
    }


def _row(weighed: Weighed, chosen: str | None) -> Json:
    return {
        "replica": weighed.replica.id,
        "is_chosen": weighed.replica.id == chosen,
        "excluded": weighed.excluded,
        "matched_tokens": weighed.matched_tokens,
        "cost": None if weighed.cost is None else round(weighed.cost, 6),
        "terms": {name: round(value, 6) for name, value in weighed.scores.items()},
    }


async def _demand(router: "Router", body: bytes, headers: Headers) -> Demand:
    """Raises InvalidRequest or UnknownModel, as the data port would."""
    now = monotonic()
    request = new_request(_surface(body), body, headers, now, now + router.settings.request_timeout_s)
    found = router.registry.find(request.model)
    if found is None:
        raise UnknownModel(f"The model `{request.model}` does not exist.", param="model")
    pool, adapter = found
    return Demand(request, pool, await router.prompts.read(request, pool, adapter), adapter)


def _surface(body: bytes) -> Surface:
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body must be the JSON object of a request: {error}.") from None
    for name, surface in _SURFACES.items():
        if name in fields:
            return surface
    raise InvalidRequest("The body must have `messages`, `prompt` or `input`.", param="messages")
