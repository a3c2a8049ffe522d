"""The example as a process of its own, asked over gRPC as a router would ask it."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pointsman.v1 import engine_pb2
from pointsman.v1.engine_pb2_grpc import EngineStub
from tests.deploy.examples.process import serving
from tests.deploy.examples.tiny_onnx import write_onnx

pytestmark = pytest.mark.slow

WORDS = ["[UNK]", "track", "train", "points", "signal"]
TABLE = np.array([[0, 0], [3, 4], [4, 3], [0, 2], [5, 0]], np.float32)


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[EngineStub]:
    folder = tmp_path / "tiny-embeddings"
    folder.mkdir()
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_onnx(folder / "model.onnx", TABLE)
    async with serving("deploy/examples/onnx_embeddings.py", str(folder)) as stub:
        yield stub


async def test_texts_become_vectors_of_length_one(stub: EngineStub) -> None:
    info = await stub.Info(engine_pb2.InfoRequest(), timeout=20)
    assert (info.model, info.vocab_size) == ("tiny-embeddings", len(WORDS))
    texts = ["track", "track train", "points points signal"]
    reply = await stub.Embed(engine_pb2.VectorsRequest(texts=texts), timeout=20)
    assert [_rounded(vector) for vector in reply.vectors] == [
        [0.6, 0.8],
        [round(math.sqrt(0.5), 4)] * 2,
        [round(5 / math.sqrt(41), 4), round(4 / math.sqrt(41), 4)],
    ]
    assert reply.usage.prompt_tokens == 6


async def test_an_empty_text_is_refused_and_what_it_lacks_is_unimplemented(stub: EngineStub) -> None:
    for texts in ([], ["track", ""]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Embed(engine_pb2.VectorsRequest(texts=texts), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(engine_pb2.GenerateRequest(request_id="r", text="track"), timeout=20).read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def _rounded(vector: Any) -> list[float]:
    return [round(value, 4) for value in vector.values]
