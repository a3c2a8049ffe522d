"""The least that a gRPC proxy in Python does: messages pass as bytes through grpc.aio, none is looked into.
`python -m loadtest.grpc.bare PORT UPSTREAM_PORT`. What ours is compared with."""

import asyncio
import sys
from typing import Any

import grpc

METHOD = "/pointsman.v1.Inference/CompleteStream"


async def serve(port: int, upstream_port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{upstream_port}") as channel:
        ask: Any = channel.unary_stream(METHOD)

        async def pass_on(data: bytes, context: Any) -> None:
            async for message in ask(data):
                await context.write(message)

        server = grpc.aio.server()
        handler: Any = grpc.unary_stream_rpc_method_handler(pass_on)
        service, method = METHOD.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
