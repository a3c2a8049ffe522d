"""Streams of many clients at once, over gRPC or SSE: how many events came, and how old each was. Knows both wires;
knows nothing of what is measured with it."""

import asyncio
import json
import time
from array import array
from dataclasses import dataclass, field

import aiohttp
import grpc

from loadtest.errors import LoadError
from loadtest.grpc.source import MODEL
from pointsman.v1 import inference_pb2, inference_pb2_grpc


@dataclass(eq=False, slots=True)
class Heard:
    """`ages_ns`: of each event, from when the replica said it to when the client had it."""

    ages_ns: "array[int]" = field(default_factory=lambda: array("q"))

    def event(self, text: str) -> None:
        if text:
            self.ages_ns.append(time.monotonic_ns() - int(text))

    @property
    def num_events(self) -> int:
        return len(self.ages_ns)

    def age_ms(self, share: float) -> float:
        """The age that this share of the events did not exceed."""
        ordered = sorted(self.ages_ns)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6


async def by_grpc(port: int, num_streams: int, num_events: int) -> Heard:
    """Raises LoadError where a stream fails."""
    heard = Heard()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        asked = inference_pb2.CompleteRequest(
            model=MODEL, tokens={"ids": [1, 2, 3]}, sampling={"max_tokens": num_events}
        )

        async def stream() -> None:
            async for event in stub.CompleteStream(asked):
                heard.event(event.text.strip())

        try:
            await asyncio.gather(*(stream() for _ in range(num_streams)))
        except grpc.aio.AioRpcError as error:
            raise LoadError(f"a call failed: {error.code().name}: {error.details()}") from None
    return heard


async def by_sse(port: int, num_streams: int, num_events: int) -> Heard:
    """Raises LoadError where a stream fails."""
    heard = Heard()
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": num_events, "stream": True}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def stream() -> None:
            async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise LoadError(f"a stream failed: {answer.status} {(await answer.text())[:200]}")
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        choices = json.loads(line[6:])["choices"]
                        heard.event(choices[0]["text"].strip() if choices else "")

        await asyncio.gather(*(stream() for _ in range(num_streams)))
    return heard
