"""Embeddings by onnxruntime as a replica: `python deploy/examples/onnx_embeddings.py FOLDER [HOST:PORT]`.

FOLDER has a model.onnx (input_ids and attention_mask in, a state for each token out) and its tokenizer.json. Serves
engine.proto's Info and Embed: the mean of a text's states, of length 1.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tokenizers import Tokenizer

from pointsman.v1 import common_pb2, engine_pb2, engine_pb2_grpc

MOST_TOKENS = 512


class OnnxEmbeddings(engine_pb2_grpc.EngineServicer):
    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        self.inputs = {each.name for each in self.session.get_inputs()}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(MOST_TOKENS)

    async def Info(self, asked: engine_pb2.InfoRequest, context: Any) -> engine_pb2.InfoReply:
        vocab_size = self.tokenizer.get_vocab_size()
        return engine_pb2.InfoReply(model=self.name, max_model_len=MOST_TOKENS, vocab_size=vocab_size)

    async def Embed(self, asked: engine_pb2.VectorsRequest, context: Any) -> engine_pb2.VectorsReply:
        if not asked.texts or not all(asked.texts):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "texts must have at least one text, and none empty")
        vectors, num_tokens = await asyncio.to_thread(self.vectors_of, list(asked.texts))
        return engine_pb2.VectorsReply(
            vectors=[engine_pb2.Vector(values=vector) for vector in vectors],
            usage=common_pb2.Usage(prompt_tokens=num_tokens),
        )

    def vectors_of(self, texts: list[str]) -> tuple[Any, int]:
        """[texts, dimensions], and the number of tokens in all."""
        encoded = self.tokenizer.encode_batch(texts)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        ids = np.array([each.ids for each in encoded], np.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = self.session.run(None, {name: given[name] for name in self.inputs})[0]
        sums = (states * mask[:, :, None]).sum(axis=1)  # The mean and the sum point the same way.
        return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12), int(mask.sum())


async def main(folder: str, address: str = "127.0.0.1:8101") -> None:
    server, checks = grpc.aio.server(), health.aio.HealthServicer()
    engine_pb2_grpc.add_EngineServicer_to_server(OnnxEmbeddings(Path(folder)), server)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    print(f"serving {folder} on port {server.add_insecure_port(address)}", flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
