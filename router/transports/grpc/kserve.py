"""KServe's and Triton's Open Inference Protocol, text in and text out. Knows its tensors; a request becomes a
completion like any other, and all else is `calls.py`'s."""

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pointsman.v1.kserve_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStreamInferResponse,
    ServerLiveRequest,
    ServerLiveResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)
from pointsman.v1.kserve_pb2_grpc import GRPCInferenceServiceServicer
from router.core import Surface
from router.errors import InvalidRequest, PointsmanError, UnknownModel
from router.transports.grpc.calls import Calls, Context, ending
from router.transports.grpc.failures import CallFailed
from router.transports.grpc.service import Models

INPUT, SAMPLING, OUTPUT = "text_input", "sampling_parameters", "text_output"
# What a client asks for that wants to be told the end of each answer, and what it is told with.
WANTS_FINAL, IS_FINAL = "triton_enable_empty_final_response", "triton_final_response"
MAX_REQUESTS_OF_CALL = 256
_LENGTH = struct.Struct("<I")


@dataclass(eq=False, slots=True)
class KserveService(GRPCInferenceServiceServicer):
    calls: Calls
    models: Models
    is_ready: Callable[[], bool]
    version: str

    async def ServerLive(self, request: ServerLiveRequest, context: Context) -> ServerLiveResponse:
        return ServerLiveResponse(live=True)

    async def ServerReady(self, request: ServerReadyRequest, context: Context) -> ServerReadyResponse:
        return ServerReadyResponse(ready=self.is_ready())

    async def ModelReady(self, request: ModelReadyRequest, context: Context) -> ModelReadyResponse:
        return ModelReadyResponse(ready=self.is_ready() and self._has(request.name))

    async def ServerMetadata(self, request: ServerMetadataRequest, context: Context) -> ServerMetadataResponse:
        return ServerMetadataResponse(name="pointsman", version=self.version)

    async def ModelMetadata(self, request: ModelMetadataRequest, context: Context) -> ModelMetadataResponse:
        async with ending(context):
            if not self._has(request.name):
                raise UnknownModel(f"The model `{request.name}` does not exist.", param="name")
            tensor = ModelMetadataResponse.TensorMetadata
            inputs = [tensor(name=name, datatype="BYTES", shape=[1]) for name in (INPUT, SAMPLING)]
            outputs = [tensor(name=OUTPUT, datatype="BYTES", shape=[-1])]
            return ModelMetadataResponse(
                name=request.name, versions=["1"], platform="pointsman", inputs=inputs, outputs=outputs
            )

    async def ModelInfer(self, request: ModelInferRequest, context: Context) -> ModelInferResponse:
        async with ending(context):
            body = completion_body(request, is_stream=False)
            async with self.calls.answer(context, Surface.COMPLETIONS, body) as (_, outbox):
                whole = await self.calls.whole(context, outbox)
                text = (whole.choices[0].text if whole.choices else None) or ""
                return _response(request, text)

    async def ModelStreamInfer(self, _: object, context: Context) -> None:
        """Requests are served side by side; one that fails is told, and the call goes on."""
        stream = _Stream(self.calls, context)
        async with asyncio.TaskGroup() as group:
            while isinstance(request := await context.read(), ModelInferRequest):
                await stream.places.acquire()
                group.create_task(stream.answer(request))

    def _has(self, name: str) -> bool:
        return any(entry["id"] == name for entry in self.models())


@dataclass(eq=False, slots=True)
class _Stream:
    """One call of many requests: their answers share the way back."""

    calls: Calls
    context: Context
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_REQUESTS_OF_CALL))
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, request: ModelInferRequest) -> None:
        try:
            await self._carry(request)
        except (CallFailed, PointsmanError) as error:
            await self._write(ModelStreamInferResponse(error_message=error.message, infer_response=_named(request)))
        finally:
            self.places.release()

    async def _carry(self, request: ModelInferRequest) -> None:
        body = completion_body(request, is_stream=True)
        async with self.calls.answer(self.context, Surface.COMPLETIONS, body) as (_, outbox):
            async for chunk in self.calls.events(None, outbox):
                if chunk.choices and chunk.choices[0].text:
                    await self._write(
                        ModelStreamInferResponse(infer_response=_response(request, chunk.choices[0].text))
                    )
        if _parameter(request.parameters, WANTS_FINAL):
            last = _named(request)
            last.parameters[IS_FINAL].bool_param = True
            await self._write(ModelStreamInferResponse(infer_response=last))

    async def _write(self, response: ModelStreamInferResponse) -> None:
        async with self._writing:
            await self.context.write(response)


def completion_body(request: ModelInferRequest, *, is_stream: bool) -> bytes:
    """The request as a completion's body. Raises InvalidRequest that names the tensor."""
    if not request.model_name:
        raise InvalidRequest("The field `model_name` is required.", param="model_name")
    texts = _texts(request)
    if INPUT not in texts:
        raise InvalidRequest(f"The tensor `{INPUT}` is required.", param=INPUT)
    fields: dict[str, object] = {
        name: value
        for name, parameter in request.parameters.items()
        if not name.startswith("triton_") and (value := _value(parameter)) is not None
    }
    fields |= _sampling(texts.get(SAMPLING))
    fields |= {"model": request.model_name, "prompt": texts[INPUT], "stream": is_stream}
    if is_stream:
        fields["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(fields)


def _texts(request: ModelInferRequest) -> dict[str, str]:
    """The one element of each tensor of BYTES."""
    raw: Sequence[bytes | None] = request.raw_input_contents or [None] * len(request.inputs)
    if len(raw) != len(request.inputs):
        raise InvalidRequest("`raw_input_contents` must have one element for each input.", param="raw_input_contents")
    found = {}
    for tensor, packed in zip(request.inputs, raw, strict=True):
        if tensor.datatype != "BYTES":
            continue  # Triton's own switches: what they ask for, the call says
        elements = list(tensor.contents.bytes_contents) if packed is None else _unpacked(packed, tensor.name)
        if len(elements) != 1:
            raise InvalidRequest(f"The tensor `{tensor.name}` must have one element.", param=tensor.name)
        try:
            found[tensor.name] = elements[0].decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"The tensor `{tensor.name}` is not UTF-8.", param=tensor.name) from None
    return found


def _unpacked(packed: bytes, name: str) -> list[bytes]:
    elements, at = [], 0
    while at < len(packed):
        if at + _LENGTH.size > len(packed):
            raise InvalidRequest(f"The tensor `{name}` is cut short.", param=name)
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size
        if at + length > len(packed):
            raise InvalidRequest(f"The tensor `{name}` is cut short.", param=name)
        elements.append(packed[at : at + length])
        at += length
    return elements


def _sampling(text: str | None) -> Mapping[str, object]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The tensor `{SAMPLING}` must be a JSON object: {error}.", param=SAMPLING) from None


def _parameter(parameters: Mapping[str, InferParameter], name: str) -> object:
    return _value(parameters[name]) if name in parameters else None


def _value(parameter: InferParameter) -> object:
    kind = parameter.WhichOneof("parameter_choice")
    value: object = getattr(parameter, kind) if kind is not None else None
    return value


def _named(request: ModelInferRequest) -> ModelInferResponse:
    return ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)


def _response(request: ModelInferRequest, text: str) -> ModelInferResponse:
    response, encoded = _named(request), text.encode()
    output = response.outputs.add(name=OUTPUT, datatype="BYTES", shape=[1])
    if request.raw_input_contents:
        response.raw_output_contents.append(_LENGTH.pack(len(encoded)) + encoded)
    else:
        output.contents.CopyFrom(InferTensorContents(bytes_contents=[encoded]))
    return response
