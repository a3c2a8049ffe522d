"""`pointsman chat`: a conversation through the router, streamed to the terminal. A client as any other: it knows the
OpenAI API and nothing of the router's inside."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

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
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=5.0)) as session:
            model = options.model or await _first_model(session, options.url)
            if message is not None:
                await _turn(session, options, model, [{"role": "user", "content": message}])
            else:
                await _converse(session, options, model)
    except ChatFailed as error:
        print(f"pointsman: {error}", file=sys.stderr)
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
    async with session.post(f"{options.url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise ChatFailed(_message(await response.text()))
        async for piece in _deltas(response):
            print(piece, end="", flush=True)
            pieces.append(piece)
        print()
        if options.says_why:
            headers = response.headers
            print(f"[{headers['x-pointsman-replica']}: {headers['x-pointsman-reason']}]", file=sys.stderr)
    return "".join(pieces)


async def _deltas(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The text of each event. Raises ChatFailed for an error in the stream."""
    async for line in response.content:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event: dict[str, Any] = json.loads(line[6:])
        if "error" in event:
            raise ChatFailed(event["error"]["message"])
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        models = (await response.json())["data"]
    if not models:
        raise ChatFailed("the router serves no model yet")
    return str(models[0]["id"])


def _message(answer: str) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:500]
