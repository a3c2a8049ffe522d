"""The gRPC port: listens, with TLS or without, and answers health checks and reflection. Knows grpc.aio; what calls
mean is the services' matter."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from pointsman.v1 import inference_pb2, kserve_pb2
from pointsman.v1.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server
from pointsman.v1.kserve_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

# How often health checks learn whether the router is ready.
HEALTH_TICK_S = 0.5
KEEPALIVE_S = 60
# Clients that ping more often than this without a call are told to go.
LEAST_PING_S = 10
SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
KSERVE_SERVICE = kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts. With `client_ca` only clients whose certificate it signed are served."""

    key: bytes
    certificate: bytes
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """Where to listen. `is_shared`: other processes of ours listen on the same port."""

    host: str
    port: int
    is_shared: bool = False
    tls: Tls | None = None


@asynccontextmanager
async def grpc_port(
    address: GrpcAddress,
    service: InferenceServicer,
    kserve: GRPCInferenceServiceServicer,
    is_ready: Callable[[], bool],
    max_message_bytes: int,
) -> AsyncIterator[int]:
    """Serve until the block is left; yields the port. Calls that are open then are cancelled. Raises OSError where the
    address cannot be had."""
    server = grpc.aio.server(options=_options(address, max_message_bytes))
    checks = health.aio.HealthServicer()
    add_InferenceServicer_to_server(service, server)
    add_GRPCInferenceServiceServicer_to_server(kserve, server)
    add_HealthServicer_to_server(checks, server)
    names = (SERVICE, KSERVE_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    port = _bind(server, address)
    async with asyncio.TaskGroup() as group:
        await server.start()
        telling = group.create_task(_tell_health(checks, is_ready))
        try:
            yield port
        finally:
            telling.cancel()
            await server.stop(None)


def _options(address: GrpcAddress, max_message_bytes: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(address.is_shared)),
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", LEAST_PING_S * 1000),
    ]


def _bind(server: grpc.aio.Server, address: GrpcAddress) -> int:
    where, tls = f"{address.host}:{address.port}", address.tls
    try:
        if tls is None:
            return server.add_insecure_port(where)
        pairs = [(tls.key, tls.certificate)]
        credentials = grpc.ssl_server_credentials(pairs, tls.client_ca, require_client_auth=tls.client_ca is not None)
        return server.add_secure_port(where, credentials)
    except RuntimeError as error:
        raise OSError(errno.EADDRINUSE, str(error)) from None


async def _tell_health(checks: health.aio.HealthServicer, is_ready: Callable[[], bool]) -> None:
    while True:
        status = HealthCheckResponse.SERVING if is_ready() else HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await checks.set(name, status)
        await asyncio.sleep(HEALTH_TICK_S)
