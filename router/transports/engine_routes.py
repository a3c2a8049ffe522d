"""Routes of engines besides inference: `/tokenize` and `/detokenize`, answered by the pool's own tokenizer where it is
here, and those that the operator has passed on as they are. Knows paths and models; what a passed body means is the
engine's matter.

What is passed on is a request like any other, with a lease, retries and limits. It has no tokens that we know of.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from router.admission.terms import asked_band, asked_deadline, terms
from router.core import Headers, Pool, Request
from router.errand import Errand, own_task
from router.errors import InvalidRequest, MethodNotAllowed, PointsmanError
from router.forms import model_in
from router.headers import request_id
from router.naming import Names
from router.openai import error_body, retry_after
from router.ports import Clock, Reply
from router.prefix.reader import Prompts
from router.routing.wishes import session_of
from router.transports.leaving import Leaving
from router.transports.responses.desk import answer as tell
from router.transports.tokenize import Answer, detokenize, tokenize

TOKEN_ROUTES: Mapping[str, Callable[[bytes], tuple[str | None, Answer]]] = {
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}
_PATTERN = re.compile(r"/[\w./~:%-]*\*?")

Begin = Callable[[Request, Reply], Errand]


@dataclass(eq=False, slots=True)
class EngineRoutes:
    """`find(model, deadline)` is its pool, and waits while some replica has not said what it serves; `admit(headers,
    model)` raises for whoever may not use it; `pools()` are all there are. `passed` are paths, or their beginnings
    where they end with a star, of which those that are `ours` stay ours; `timeout_s` bounds a request."""

    begin: Begin
    find: Callable[[str, float], Awaitable[Pool]]
    pools: Callable[[], Sequence[Pool]]
    admit: Callable[[Headers, str], None]
    prompts: Prompts
    names: Names
    clock: Clock
    timeout_s: float
    refused: Callable[[int], None]
    passed: Sequence[str] = ()
    ours: Callable[[str], bool] = lambda _: False
    _exact: frozenset[str] = field(init=False)
    _beginnings: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._exact = frozenset(path for path in self.passed if not path.endswith("*"))
        self._beginnings = tuple(path[:-1] for path in self.passed if path.endswith("*"))

    def takes(self, path: str) -> bool:
        return path in TOKEN_ROUTES or (bool(self.passed) and self._passes(path))

    def serve(self, method: str, target: str, headers: Headers, body: bytes, reply: Reply) -> Errand:
        """Answer one request whose path `takes` takes; `target` is that, and its query."""
        errand = Errand(self._carry(method, target, headers, body, reply))
        reply.bind(Leaving(errand))
        return errand.step()

    def _passes(self, path: str) -> bool:
        is_named = path in self._exact or path.startswith(self._beginnings)
        return is_named and ".." not in path and not self.ours(path)

    async def _carry(self, method: str, target: str, headers: Headers, body: bytes, reply: Reply) -> None:
        try:
            path = target.partition("?")[0]
            if method != "POST":
                raise MethodNotAllowed(f"{path} takes POST, not {method}.", headers=(("allow", "POST"),))
            if path in TOKEN_ROUTES:
                await self._answer_tokens(path, headers, body, reply)
            else:
                await self._pass_on(self._request(target, headers, body, model_in(body)), reply)
        except PointsmanError as error:
            self.refused(error.status)
            wait = retry_after(error)
            more = (*error.headers, *(() if wait is None else (("retry-after", wait),)))
            tell(reply, error.status, error_body(error), headers, more)

    async def _answer_tokens(self, path: str, headers: Headers, body: bytes, reply: Reply) -> None:
        await own_task()
        model, answer = TOKEN_ROUTES[path](body)
        request = self._request(path, headers, body, model)
        self.admit(headers, request.model)
        pool = await self.find(self.names.named(request).model, request.deadline)
        found = await self.prompts.with_reading(pool, lambda reading: answer(reading, pool.max_model_len))
        if found is None:
            await self._pass_on(request, reply)
        else:
            tell(reply, 200, msgspec.json.encode(found), headers)

    async def _pass_on(self, request: Request, reply: Reply) -> None:
        await self.begin(request, reply).wait()

    def _request(self, target: str, headers: Headers, body: bytes, model: str | None) -> Request:
        """Raises InvalidRequest where it names no model and there are several."""
        pools = self.pools()
        if model is None and len(pools) != 1:
            raise InvalidRequest("The field `model` is required, as not just one is served.", param="model")
        now = self.clock()
        return Request(
            id=request_id(headers),
            surface=target,
            model=pools[0].model if model is None else model,
            body=body,
            arrived=now,
            deadline=asked_deadline(terms(headers), None, now, now + self.timeout_s),
            prompt=[],
            band=asked_band(terms(headers), None, None),
            max_tokens=1,
            session=session_of(headers),
            headers=headers,
        )

    def __repr__(self) -> str:
        return f"<EngineRoutes {len(self.passed)} passed on>"


def parse_passed(texts: Iterable[str]) -> Sequence[str]:
    """From `PATH[,PATH]` with a star at the end of a path for all that begin so. Raises ValueError."""
    paths = [path.strip() for text in texts for path in text.split(",")]
    for path in paths:
        if not _PATTERN.fullmatch(path) or path in ("/", "/*"):
            raise ValueError(f"`{path}` is not of the form /a/path or /a/beginning/*")
    return paths
