"""Plain `transformers` generation as a replica: `python deploy/examples/transformers_engine.py MODEL [HOST:PORT]`.
Serves Info and Generate of engine.proto, one request at a time; what it cannot honour it refuses by name."""

import asyncio
import sys
from typing import Any

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from transformers import AutoModelForCausalLM, AutoTokenizer

from pointsman.v1 import common_pb2, engine_pb2, engine_pb2_grpc

SAMPLING = {"max_tokens", "temperature", "top_p", "top_k", "min_p", "stop_token_ids", "ignore_eos"}
HONOURED = {"request_id", "token_ids", "text", "sampling", "cache_salt", "priority"} | SAMPLING


class TransformersEngine(engine_pb2_grpc.EngineServicer):
    def __init__(self, path: str) -> None:
        self.name, self.turn = path.rstrip("/").rsplit("/", 1)[-1], asyncio.Lock()
        self.model: Any = AutoModelForCausalLM.from_pretrained(path)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.room: int = self.model.config.max_position_embeddings

    async def Info(self, asked: engine_pb2.InfoRequest, context: Any) -> engine_pb2.InfoReply:
        return engine_pb2.InfoReply(model=self.name, max_model_len=self.room, vocab_size=self.model.config.vocab_size)

    async def Generate(self, asked: engine_pb2.GenerateRequest, context: Any) -> None:
        prompt = self.tokenizer.encode(asked.text) if asked.HasField("text") else list(asked.token_ids)
        limit = asked.sampling.max_tokens or self.room - len(prompt)
        refused = {field.name for field, _ in [*asked.sampling.ListFields(), *asked.ListFields()]} - HONOURED
        if refused or not prompt or len(prompt) + limit > self.room or limit < 1:
            about = ", ".join(sorted(refused)) or f"{len(prompt)} tokens and {limit} more in a context of {self.room}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not supported: {about}")
        said, text, tokens, is_gone = list[int](), "", asyncio.Queue[int | None](), asyncio.Event()
        put = asyncio.get_running_loop().call_soon_threadsafe

        def took_step(ids: torch.Tensor, scores: object) -> torch.Tensor:
            put(tokens.put_nowait, int(ids[0, -1]))
            return torch.full((1,), is_gone.is_set())

        async with self.turn:
            running = asyncio.ensure_future(asyncio.to_thread(self.run, prompt, limit, asked.sampling, took_step))
            running.add_done_callback(lambda _: tokens.put_nowait(None))
            try:
                while (token := await tokens.get()) is not None:
                    said.append(token)
                    whole = self.tokenizer.decode(said, skip_special_tokens=True).removesuffix("\ufffd")
                    new, text = whole[len(text) :], max(text, whole, key=len)  # half a character waits
                    await context.write(engine_pb2.GenerateEvent(token_ids=[token], text=new))
                await running
            finally:
                is_gone.set()  # A client that left is noticed at the next token.
                await asyncio.wait([running])
        last = engine_pb2.GenerateEvent(usage={"prompt_tokens": len(prompt), "output_tokens": len(said)})
        last.finish_reason = common_pb2.FINISH_REASON_LENGTH if len(said) == limit else common_pb2.FINISH_REASON_STOP
        await context.write(last)

    def run(self, prompt: list[int], limit: int, wish: common_pb2.Sampling, took_step: Any) -> None:
        options = {field.name: value for field, value in wish.ListFields() if field.name in ("top_p", "top_k", "min_p")}
        heat = wish.temperature if wish.HasField("temperature") else 1.0
        ends = [*wish.stop_token_ids, *([] if wish.ignore_eos else [self.tokenizer.eos_token_id])]
        options |= {"do_sample": heat > 0, "temperature": heat or 1.0, "eos_token_id": ends or None}
        self.model.generate(torch.tensor([prompt]), max_new_tokens=limit, stopping_criteria=[took_step], **options)


async def main(path: str, address: str = "127.0.0.1:8100") -> None:
    server, checks = grpc.aio.server(), health.aio.HealthServicer()
    engine_pb2_grpc.add_EngineServicer_to_server(TransformersEngine(path), server)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    print(f"serving {path} on port {server.add_insecure_port(address)}", flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
