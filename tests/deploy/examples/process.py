"""An example as a process of its own, on a port that it finds."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from pointsman.v1.engine_pb2_grpc import EngineStub


@asynccontextmanager
async def serving(script: str, path: str) -> AsyncIterator[EngineStub]:
    """Healthy, as routers see it."""
    process = await asyncio.create_subprocess_exec(sys.executable, script, path, "127.0.0.1:0", stdout=PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(100):
            line = await process.stdout.readline()
        port = int(line.split()[-1])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
            )
            health = await check(HealthCheckRequest(), timeout=20, wait_for_ready=True)
            assert health.status == HealthCheckResponse.SERVING
            yield EngineStub(channel)
    finally:
        process.terminate()
        await process.wait()
