"""`pointsman chat`: a conversation through the router, streamed to the terminal. A client as any other: it knows the
OpenAI API and nothing of the router's inside."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from router.config import credentials

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """`model` None: the first that the router serves. `max_tokens` is for each answer."""

    url: str
    model: str | None
    max_tokens: int
    temperature: float
    says_why: bool


class ChatFailed(Exception):
    """One sentence for the user."""


async def chat(options: ChatOptions, message: str | None) -> int:
    """One message, or a conversation until the input ends. 1 when an answer failed."""
    try:
        timeout, headers = aiohttp.ClientTimeout(total=None, connect=5.0), credentials(os.environ)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            model = options.model or await _first_model(session, options.url)
            if message is not None:
                await _turn(session, options, model, [{"role": "user", "content": message}])
            else:
                await _converse(session, options, model)
    except ChatFailed as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1
    except aiohttp.ClientPayloadError as error:
        print(f"pointsman: the answer broke off: {error}", file=sys.stderr)
        return 1
    except aiohttp.ClientError as error:
        print(f"pointsman: no router answers at {options.url}: {error}", file=sys.stderr)
        return 1
    return 0


async def _converse(session: aiohttp.ClientSession, options: ChatOptions, model: str) -> None:
    messages: list[Message] = []
    while True:
        try:
            said = await asyncio.to_thread(input, "> ")
        except EOFError:
            return
        if said.strip():
            messages.append({"role": "user", "content": said})
            messages.append({"role": "assistant", "content": await _turn(session, options, model, messages)})


async def _turn(session: aiohttp.ClientSession, options: ChatOptions, model: str, messages: list[Message]) -> str:
    """Print one answer as it comes, and return it."""
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
    }
    pieces: list[str] = []
    notes: dict[str, str] = {}
    async with session.post(f"{options.url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise ChatFailed(_message(await response.text()))
        try:
            async for piece in _deltas(response, notes):
                print(piece, end="", flush=True)
                pieces.append(piece)
        finally:
            print()
        if options.says_why:
            print(_why({**response.headers, **notes}), file=sys.stderr)
    return "".join(pieces)


async def _deltas(response: aiohttp.ClientResponse, notes: dict[str, str]) -> AsyncIterator[str]:
    """The text of each event; comments with a name go to `notes`. Raises ChatFailed for an error in the stream."""
    async for line in response.content:
        if line.startswith(b": ") and b": " in line[2:]:
            name, value = line[2:].decode().strip().split(": ", 1)
            notes[name] = value
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = _json(line[6:].decode("utf-8", "replace"))
        if event.get("error"):
            raise ChatFailed(_message(line[6:].decode("utf-8", "replace")))
        for choice in event.get("choices") or ():
            yield (choice.get("delta") or {}).get("content") or ""


def _why(notes: Mapping[str, str]) -> str:
    """A head that had to go out early says nothing of a replica: then comments in the stream do."""
    named = {name.lower(): value for name, value in notes.items()}
    return f"[{named.get('x-pointsman-replica', 'no replica named')}: {named.get('x-pointsman-reason', 'no reason')}]"


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        answer = await response.text()
    if response.status != 200:
        raise ChatFailed(_message(answer))
    models = _json(answer).get("data")
    if not models:
        raise ChatFailed("the router serves no model yet")
    return str(models[0]["id"])


def _json(text: str) -> dict[str, Any]:
    try:
        decoded = json.loads(text)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise ChatFailed(f"the router answered what is no JSON object: {text.strip()[:200]!r}")
    return decoded


def _message(answer: str) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.strip()[:500]
