"""Requests that come in another API's form: OpenAI's Responses, Anthropic's Messages. Knows whose form a path has, and
how what is refused is told in it; the forms are the files beside it, and what a response is, `responses/`.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from router.core import Headers, Request, Surface
from router.errand import Errand
from router.errors import PointsmanError
from router.headers import find
from router.openai import error_body, retry_after
from router.ports import Clock, Reply
from router.transports.asking import new_request
from router.transports.dialects import messages_ask, messages_tell
from router.transports.dialects.messages_tell import MessageTeller
from router.transports.dialects.translating import TranslatingReply
from router.transports.leaving import Leaving
from router.transports.responses.desk import ResponseDesk, answer

Begin = Callable[[Request, Reply], Errand]
Count = Callable[[Request], Coroutine[Any, Any, int]]
Steps = Callable[[Headers, bytes, Reply, Leaving], Coroutine[Any, Any, None]]

RESPONSES, MESSAGES, COUNT_TOKENS = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"


@dataclass(eq=False, slots=True)
class Dialects:
    """`begin` serves a chat request; `count` gives the length of its prompt in tokens; a request takes `timeout_s` at
    most; `refused` is told the status of what never became one."""

    begin: Begin
    count: Count
    responses: ResponseDesk
    clock: Clock
    timeout_s: float
    refused: Callable[[int], None]

    def takes(self, method: str, path: str) -> bool:
        return method == "POST" and path in (RESPONSES, MESSAGES, COUNT_TOKENS)

    def serve(self, path: str, headers: Headers, body: bytes, reply: Reply) -> Errand:
        """Answer one request that `takes` takes."""
        steps = {RESPONSES: self._respond, MESSAGES: self._message, COUNT_TOKENS: self._count}[path]
        leaving = Leaving()
        leaving.errand = errand = Errand(self._carry(path, steps, _with_bearer(headers), body, reply, leaving))
        reply.bind(leaving)
        return errand.step()

    # the rest

    async def _carry(
        self, path: str, steps: Steps, headers: Headers, body: bytes, reply: Reply, leaving: Leaving
    ) -> None:
        try:
            await steps(headers, body, reply, leaving)
        except PointsmanError as error:
            self.refused(error.status)
            told = error_body(error) if path == RESPONSES else messages_tell.refusal_of(error)
            wait = retry_after(error)
            more = error.headers if wait is None else (*error.headers, ("retry-after", wait))
            answer(reply, error.status, told, headers, more)

    async def _respond(self, headers: Headers, body: bytes, reply: Reply, leaving: Leaving) -> None:
        await self.responses.respond(headers, body, reply, leaving, None)

    async def _message(self, headers: Headers, body: bytes, reply: Reply, _: Leaving) -> None:
        ask, chat = messages_ask.decode(body)
        request = self._request(headers, chat)
        await self.begin(request, TranslatingReply(reply, MessageTeller(ask.model, ask.hides_thoughts))).wait()

    async def _count(self, headers: Headers, body: bytes, reply: Reply, __: Leaving) -> None:
        self.responses.owner_of(headers)  # no other door asks who counts
        _, chat = messages_ask.decode(body, is_count=True)
        num_tokens = await self.count(self._request(headers, chat))
        answer(reply, 200, msgspec.json.encode({"input_tokens": num_tokens}), headers)

    def _request(self, headers: Headers, chat: bytes) -> Request:
        now = self.clock()
        return new_request(Surface.CHAT, chat, headers, now, now + self.timeout_s)

    def __repr__(self) -> str:
        return f"<Dialects over {self.responses!r}>"


def _with_bearer(headers: Headers) -> Headers:
    """Anthropic's SDK shows its key in a header of its own."""
    key = find(headers, "x-api-key")
    if key is None or find(headers, "authorization") is not None:
        return headers
    return (*(pair for pair in headers if pair[0] != "x-api-key"), ("authorization", f"Bearer {key}"))
