"""A replica that says events at a pace, each with the time it was said: over engine.proto, over HTTP, and, for the bare
proxy, as clients' messages. `python -m loadtest.grpc.source GRPC_PORT HTTP_PORT INTERVAL_MS`; no model, no tokens.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop
from aiohttp import web
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pointsman.v1 import common_pb2, engine_pb2, engine_pb2_grpc, inference_pb2

MODEL = "paced"
SSE = {"content-type": "text/event-stream; charset=utf-8"}


async def paced(num_events: int, interval_s: float) -> AsyncIterator[str]:
    """The time in nanoseconds, as text, so many times; streams begin at moments of their own."""
    due = time.monotonic() + random.random() * interval_s
    for _ in range(num_events):
        if interval_s:
            await asyncio.sleep(due - time.monotonic())
        due += interval_s
        yield f"{time.monotonic_ns()} "


class Source(engine_pb2_grpc.EngineServicer):
    """engine.proto, as far as a router asks."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s

    async def Info(self, asked: engine_pb2.InfoRequest, context: Any) -> engine_pb2.InfoReply:
        return engine_pb2.InfoReply(model=MODEL, max_model_len=10**6, vocab_size=10**6)

    async def Generate(self, asked: engine_pb2.GenerateRequest, context: Any) -> None:
        number = 0
        async for text in paced(asked.sampling.max_tokens, self.interval_s):
            number += 1
            await context.write(engine_pb2.GenerateEvent(token_ids=[number], text=text))
        usage = {"prompt_tokens": len(asked.token_ids), "output_tokens": number}
        reason = common_pb2.FINISH_REASON_LENGTH
        await context.write(engine_pb2.GenerateEvent(finish_reason=reason, usage=usage))

    async def complete(self, data: bytes, context: Any) -> None:
        """Inference.CompleteStream, for a proxy that looks into nothing."""
        asked = inference_pb2.CompleteRequest.FromString(data)
        async for text in paced(asked.sampling.max_tokens, self.interval_s):
            await context.write(inference_pb2.CompleteEvent(id="x", text=text).SerializeToString())

    async def over_http(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers=SSE)
        await response.prepare(request)
        head = b'data: {"id":"x","object":"text_completion","created":1,"model":"paced","choices":[{"index":0,"text":"'
        async for text in paced(body["max_tokens"], self.interval_s):
            await response.write(head + text.encode() + b'","logprobs":null,"finish_reason":null}]}\n\n')
        await response.write(head + b'","logprobs":null,"finish_reason":"length"}]}\n\ndata: [DONE]\n\n')
        return response


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


async def healthy(_: web.Request) -> web.Response:
    return web.Response()


async def serve(grpc_port: int, http_port: int, interval_s: float) -> None:
    source, server, checks = Source(interval_s), grpc.aio.server(), health.aio.HealthServicer()
    engine_pb2_grpc.add_EngineServicer_to_server(source, server)
    handler: Any = grpc.unary_stream_rpc_method_handler(source.complete)
    handlers = grpc.method_handlers_generic_handler("pointsman.v1.Inference", {"CompleteStream": handler})
    server.add_generic_rpc_handlers((handlers,))
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    app = web.Application()
    app.add_routes([web.get("/health", healthy), web.get("/v1/models", models)])
    app.add_routes([web.post("/v1/completions", source.over_http)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", http_port).start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3))
