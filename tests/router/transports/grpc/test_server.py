"""The port itself: TLS, health, reflection, limits, and an address that is taken."""

import socket
import subprocess
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from pointsman.v1.inference_pb2 import ListModelsRequest
from pointsman.v1.inference_pb2_grpc import InferenceServicer
from pointsman.v1.kserve_pb2_grpc import GRPCInferenceServiceServicer
from router.transports.grpc.server import KSERVE_SERVICE, SERVICE, GrpcAddress, Tls, grpc_port
from tests.router.transports.grpc.rig import MAX_MESSAGE_BYTES, chat, open_rig


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate authority, and a server's and a client's certificate from it."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl(*"req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca".split())
    for name in ("server", "client"):
        openssl(*f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN=localhost".split())
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        signing = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2"
        openssl(*signing.split(), "-extfile", "names")
    return folder


def read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def secure(port: int, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


async def test_tls_serves_a_client_that_trusts_its_authority(authority: Path) -> None:
    tls = Tls(read(authority, "server.key"), read(authority, "server.pem"))
    trusting = grpc.ssl_channel_credentials(read(authority, "ca.pem"))
    async with open_rig(tls, lambda port: secure(port, trusting)) as rig:
        assert [each.id for each in (await rig.stub.ListModels(ListModelsRequest())).models] == ["m"]


async def test_mutual_tls_serves_only_clients_with_a_certificate(authority: Path) -> None:
    ca = read(authority, "ca.pem")
    tls = Tls(read(authority, "server.key"), read(authority, "server.pem"), client_ca=ca)
    known = grpc.ssl_channel_credentials(ca, read(authority, "client.key"), read(authority, "client.pem"))
    async with open_rig(tls, lambda port: secure(port, known)) as rig:
        assert (await rig.stub.ListModels(ListModelsRequest())).models
    unknown = grpc.ssl_channel_credentials(ca)
    async with open_rig(tls, lambda port: secure(port, unknown)) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.ListModels(ListModelsRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_health_follows_readiness() -> None:
    ready = [True]
    async with open_rig(is_ready=lambda: ready[0]) as rig:
        stub: Any = HealthStub(rig.channel)
        watch = stub.Watch(HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == HealthCheckResponse.SERVING
        ready[0] = False
        assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
        watch.cancel()


async def test_reflection_lists_the_services() -> None:
    async with open_rig() as rig:
        stub: Any = ServerReflectionStub(cast(grpc.Channel, rig.channel))
        call = stub.ServerReflectionInfo()
        await call.write(ServerReflectionRequest(list_services=""))
        names = {each.name for each in (await call.read()).list_services_response.service}
        assert names == {SERVICE, KSERVE_SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        await call.done_writing()


async def test_a_message_over_the_limit_is_refused_and_the_connection_lives_on() -> None:
    async with open_rig() as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.stub.Chat(chat("x" * (MAX_MESSAGE_BYTES + 1)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await rig.stub.ListModels(ListModelsRequest())).models


async def test_an_address_that_is_taken_is_an_error_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = GrpcAddress("127.0.0.1", taken.getsockname()[1])
        services = InferenceServicer(), GRPCInferenceServiceServicer()
        with pytest.raises(OSError, match="address"):
            async with grpc_port(address, *services, lambda: True, MAX_MESSAGE_BYTES):
                pass
