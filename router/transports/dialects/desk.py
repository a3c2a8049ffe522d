"""Requests that come in another API's form: OpenAI's Responses, Anthropic's Messages. Knows the order of steps from
their bytes to a chat request and back; the forms are the files beside it.

A response that is stored can be followed by another (`previous_response_id`), read, cancelled and deleted. One in the
background is answered at once and goes on without its client.
"""

import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.core import Headers, Outcome, Request, Surface
from router.errand import Errand
from router.errors import InvalidRequest, PointsmanError
from router.headers import JSON, find, request_id
from router.openai import error_body, retry_after
from router.ports import Clock, Reply, ResponseStore
from router.transports.asking import new_request
from router.transports.dialects import messages_ask, messages_tell, responses_ask
from router.transports.dialects.messages_tell import MessageTeller
from router.transports.dialects.responses_ask import Asked
from router.transports.dialects.responses_tell import ResponseTeller
from router.transports.dialects.translating import TranslatingReply
from router.transports.outbox import Outbox

Begin = Callable[[Request, Reply], Errand]
Count = Callable[[Request], Coroutine[Any, Any, int]]

RESPONSES, MESSAGES, COUNT_TOKENS = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"


class UnknownResponse(InvalidRequest):
    status = 404
    code = "response_not_found"


class Kept(msgspec.Struct):
    """A stored response: itself, what was put in, and the conversation up to its end in chat's form."""

    response: dict[str, Any]
    input: list[Any]
    messages: list[Any]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A Flow for as long as nothing is under way for a client but its errand."""

    errand: Errand

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def gone(self) -> None:
        self.errand.cancel()


@dataclass(eq=False, slots=True)
class Dialects:
    """`begin` serves a chat request; `count` gives the length of its prompt in tokens; a request takes `timeout_s` at
    most; `refused` is told the status of what never became one."""

    begin: Begin
    count: Count
    store: ResponseStore
    clock: Clock
    timeout_s: float
    refused: Callable[[int], None]
    running: dict[tuple[str, str], Errand] = field(default_factory=dict)

    def takes(self, method: str, path: str) -> bool:
        return method == "POST" and path in (RESPONSES, MESSAGES, COUNT_TOKENS)

    def serve(self, path: str, headers: Headers, body: bytes, reply: Reply) -> Errand:
        """Answer one request that `takes` takes."""
        steps = {RESPONSES: self._respond, MESSAGES: self._message, COUNT_TOKENS: self._count}[path]
        errand = Errand(self._carry(path, steps, _with_bearer(headers), body, reply))
        reply.bind(Leaving(errand))
        return errand.step()

    async def kept(self, owner: str, id: str) -> Kept:
        """Raises UnknownResponse."""
        record = await self.store.get(owner, id)
        if record is None:
            raise UnknownResponse(f"There is no response `{id}`.", param="response_id")
        return msgspec.json.decode(record, type=Kept)

    async def cancel(self, owner: str, id: str) -> Kept:
        """Stop a response in the background. One that has ended stays as it is. Raises UnknownResponse."""
        errand, kept = self.running.pop((owner, id), None), await self.kept(owner, id)
        if errand is not None:
            errand.cancel()
            kept.response["status"] = "cancelled"
            await self.store.put(owner, id, msgspec.json.encode(kept))
        return kept

    # the rest

    async def _carry(
        self,
        path: str,
        steps: Callable[[Headers, bytes, Reply], Coroutine[Any, Any, None]],
        headers: Headers,
        body: bytes,
        reply: Reply,
    ) -> None:
        try:
            await steps(headers, body, reply)
        except PointsmanError as error:
            self.refused(error.status)
            told = error_body(error) if path == RESPONSES else messages_tell.refusal_of(error)
            wait = retry_after(error)
            _answer(reply, error.status, told, headers, () if wait is None else (("retry-after", wait),))

    async def _respond(self, headers: Headers, body: bytes, reply: Reply) -> None:
        asked, owner = responses_ask.decode(body), owner_of(headers)
        if asked.ask.background and asked.ask.stream:
            raise InvalidRequest("`stream` cannot be had together with `background`: poll instead.", param="stream")
        before: Sequence[Mapping[str, Any]] = ()
        if asked.ask.previous_response_id is not None:
            before = (await self.kept(owner, asked.ask.previous_response_id)).messages
        request = self._request(headers, asked.chat_body(before))
        teller = ResponseTeller(asked, on_end=lambda _: None)
        if asked.ask.background:
            await self._start(request, teller, asked, owner, before, headers, reply)
            return
        await self.begin(request, TranslatingReply(reply, teller)).wait()
        if asked.ask.store is not False and teller.status in ("completed", "incomplete"):
            await self._keep(owner, teller, asked, before)

    async def _start(
        self,
        request: Request,
        teller: ResponseTeller,
        asked: Asked,
        owner: str,
        before: Sequence[Mapping[str, Any]],
        headers: Headers,
        reply: Reply,
    ) -> None:
        """In the background: known before it is answered, so that whoever asks for it finds it."""
        teller.status = "queued"
        await self._keep(owner, teller, asked, before)
        _answer(reply, 200, msgspec.json.encode(teller.response()), headers)
        self._run(self._finish(request, teller, asked, owner, before), owner, teller.id)

    def _run(self, steps: Coroutine[Any, Any, None], owner: str, id: str) -> None:
        self.running[owner, id] = errand = Errand(steps)
        errand.step()

    async def _finish(
        self, request: Request, teller: ResponseTeller, asked: Asked, owner: str, before: Sequence[Mapping[str, Any]]
    ) -> None:
        teller.status = "in_progress"
        try:
            await self.begin(request, TranslatingReply(Unread(), teller)).wait()
            await self._keep(owner, teller, asked, before)
        finally:
            self.running.pop((owner, teller.id), None)

    async def _keep(
        self, owner: str, teller: ResponseTeller, asked: Asked, before: Sequence[Mapping[str, Any]]
    ) -> None:
        said = [*before, *asked.messages, *teller.said()]
        given = asked.ask.input if isinstance(asked.ask.input, list) else [_text_item(asked.ask.input or "")]
        await self.store.put(owner, teller.id, msgspec.json.encode(Kept(teller.response(), given, said)))

    async def _message(self, headers: Headers, body: bytes, reply: Reply) -> None:
        ask, chat = messages_ask.decode(body)
        request = self._request(headers, chat)
        await self.begin(request, TranslatingReply(reply, MessageTeller(ask.model))).wait()

    async def _count(self, headers: Headers, body: bytes, reply: Reply) -> None:
        _, chat = messages_ask.decode(body, is_count=True)
        num_tokens = await self.count(self._request(headers, chat))
        _answer(reply, 200, msgspec.json.encode({"input_tokens": num_tokens}), headers)

    def _request(self, headers: Headers, chat: bytes) -> Request:
        now = self.clock()
        return new_request(Surface.CHAT, chat, headers, now, now + self.timeout_s)

    def __repr__(self) -> str:
        return f"<Dialects {len(self.running)} in the background>"


class Unread(Outbox):
    """The answer of a request whose client is not here: its teller has heard all that is needed."""

    def write(self, payload: bytes, framed: bytes | None = None) -> None:
        """Nobody reads it."""


def owner_of(headers: Headers) -> str:
    """Whose responses these are: the credential's. Those without one share what they store."""
    shown = find(_with_bearer(headers), "authorization")
    return "" if shown is None else hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()


def _with_bearer(headers: Headers) -> Headers:
    """Anthropic's SDK shows its key in a header of its own."""
    key = find(headers, "x-api-key")
    if key is None or find(headers, "authorization") is not None:
        return headers
    return (*(pair for pair in headers if pair[0] != "x-api-key"), ("authorization", f"Bearer {key}"))


def _text_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _answer(reply: Reply, status: int, body: bytes, headers: Headers, more: Headers = ()) -> None:
    reply.head(status, (*JSON, *more), (("x-request-id", request_id(headers)),), len(body))
    reply.write(body)
    reply.end(Outcome.OK if status < 400 else Outcome.REJECTED, is_complete=True)
