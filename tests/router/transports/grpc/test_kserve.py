"""The Open Inference Protocol: text in and text out, whole and in pieces, and what is wrong with it."""

import json
import struct
from typing import Any

import grpc
import pytest

from pointsman.v1.kserve_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from pointsman.v1.kserve_pb2_grpc import GRPCInferenceServiceStub
from tests.contracts.hostile import DONE
from tests.fakes import until
from tests.router.transports.grpc.rig import Rig, field_of, open_rig
from tests.router.transports.grpc.test_service import chunk


def stub_of(rig: Rig) -> Any:
    return GRPCInferenceServiceStub(rig.channel)


def tensor(name: str, *texts: str, datatype: str = "BYTES") -> ModelInferRequest.InferInputTensor:
    contents = InferTensorContents(bytes_contents=[text.encode() for text in texts])
    return ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=[len(texts)], contents=contents)


def ask(**fields: object) -> ModelInferRequest:
    given = {"model_name": "m", "id": "7", "inputs": [tensor("text_input", "Once")], **fields}
    return ModelInferRequest(**given)  # type: ignore[arg-type]


async def test_the_server_and_its_models_are_told() -> None:
    ready = [True]
    async with open_rig(is_ready=lambda: ready[0]) as rig:
        stub = stub_of(rig)
        assert (await stub.ServerLive(ServerLiveRequest())).live
        assert (await stub.ServerReady(ServerReadyRequest())).ready
        assert (await stub.ModelReady(ModelReadyRequest(name="m"))).ready
        assert not (await stub.ModelReady(ModelReadyRequest(name="other"))).ready
        assert (await stub.ServerMetadata(ServerMetadataRequest())).version == "1.2"
        shown = await stub.ModelMetadata(ModelMetadataRequest(name="m"))
        assert [each.name for each in shown.inputs] == ["text_input", "sampling_parameters"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelMetadata(ModelMetadataRequest(name="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        ready[0] = False
        assert not (await stub.ServerReady(ServerReadyRequest())).ready


async def test_text_goes_in_and_comes_out() -> None:
    async with open_rig() as rig:
        request = ask()
        request.parameters["max_tokens"].int64_param = 5
        request.inputs.append(tensor("sampling_parameters", '{"temperature": 0.5}'))
        call = stub_of(rig).ModelInfer(request)
        exchange = await rig.exchange()
        body = json.loads(exchange.attempt.body)
        assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("Once", 5, 0.5)
        exchange.answer(200, b'{"choices":[{"text":" upon"}]}')
        response = await call
        assert (response.id, response.model_name) == ("7", "m")
        assert response.outputs[0].contents.bytes_contents[0] == b" upon"


async def test_raw_contents_go_in_and_come_out() -> None:
    async with open_rig() as rig:
        request = ask()
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(struct.pack("<I", 4) + b"Once")
        call = stub_of(rig).ModelInfer(request)
        exchange = await rig.exchange()
        assert json.loads(exchange.attempt.body)["prompt"] == "Once"
        exchange.answer(200, b'{"choices":[{"text":" upon"}]}')
        assert (await call).raw_output_contents[0] == struct.pack("<I", 5) + b" upon"


async def test_many_requests_stream_side_by_side_and_one_that_fails_is_told() -> None:
    async with open_rig() as rig:
        call = stub_of(rig).ModelStreamInfer()
        first = ask(id="1")
        first.parameters["triton_enable_empty_final_response"].bool_param = True
        for request in (first, ask(id="2", inputs=[]), ask(id="3")):
            await call.write(request)
        failed = await call.read()
        assert (failed.infer_response.id, "text_input" in failed.error_message) == ("2", True)
        exchanges = [await rig.exchange(0), await rig.exchange(1)]
        for exchange in exchanges:
            exchange.head()
            exchange.send(chunk(text=" upon") + chunk(text="", finish="stop") + DONE)
            exchange.end()
        heard = [await call.read() for _ in range(3)]
        assert sorted(each.infer_response.id for each in heard) == ["1", "1", "3"]
        finals = [each for each in heard if "triton_final_response" in each.infer_response.parameters]
        assert [each.infer_response.id for each in finals] == ["1"]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_client_that_leaves_cancels_every_request_of_its_stream() -> None:
    async with open_rig() as rig:
        call = stub_of(rig).ModelStreamInfer()
        await call.write(ask(id="1"))
        await call.write(ask(id="2"))
        exchanges = [await rig.exchange(0), await rig.exchange(1)]
        call.cancel()
        await until(lambda: all(exchange.is_aborted for exchange in exchanges))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_name": ""}, "model_name"),
        ({"inputs": []}, "text_input"),
        ({"inputs": [tensor("text_input")]}, "text_input"),
        ({"inputs": [tensor("text_input", "a", "b")]}, "text_input"),
        ({"inputs": [tensor("text_input", "a"), tensor("sampling_parameters", "[]")]}, "sampling_parameters"),
        ({"raw_input_contents": [b"\x09\0\0\0x"]}, "text_input"),
        ({"raw_input_contents": [b"\x01"]}, "text_input"),
        ({"raw_input_contents": [b"\x01\0\0\0\xff"]}, "text_input"),
        ({"raw_input_contents": [b"", b""]}, "raw_input_contents"),
    ],
)
async def test_a_wrong_tensor_is_named(fields: dict[str, object], named: str) -> None:
    async with open_rig() as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub_of(rig).ModelInfer(ask(**fields))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field_of(caught.value) == named
        assert rig.upstream.exchanges == []
