"""Attempts on replicas behind gRPC, and a tokenizer whose tokens are bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.core import Attempt, Pool, Replica
from router.spec import ReplicaSpec
from router.upstream.grpc.planning import Planner

POOL = Pool("m", max_model_len=1000)


@dataclass(eq=False)
class ByteDecoder:
    """Bytes of a character wait for the rest of it."""

    waiting: bytes = b""

    def push(self, ids: Sequence[int]) -> str:
        self.waiting += bytes(ids)
        for end in range(len(self.waiting), -1, -1):
            try:
                text = self.waiting[:end].decode()
            except UnicodeDecodeError:
                continue
            self.waiting = self.waiting[end:]
            return text
        return ""

    def flush(self) -> str:
        rest, self.waiting = self.waiting, b""
        return rest.decode(errors="replace")


@dataclass(eq=False)
class ByteIds:
    """`ports.TokenIds`: a chat is its contents joined; `is_loaded` says whether there is a tokenizer."""

    is_loaded: bool = True
    asked: list[tuple[object, Mapping[str, object]]] = field(default_factory=list)

    def now(self, pool: Pool, content: object, options: Mapping[str, object]) -> Sequence[int] | None:
        assert pool is POOL
        self.asked.append((content, options))
        if not self.is_loaded:
            return None
        if isinstance(content, str):
            return list(content.encode())
        assert isinstance(content, list)
        texts = [message["content"] for message in content]
        return list("|".join(texts).encode()) if all(isinstance(text, str) for text in texts) else None

    async def soon(self, pool: Pool, content: object, options: Mapping[str, object]) -> Sequence[int] | None:
        return self.now(pool, content, options)

    def decoder(self, pool: Pool) -> ByteDecoder | None:
        return ByteDecoder() if self.is_loaded else None


def planner(*, is_loaded: bool = True) -> Planner:
    return Planner(ByteIds(is_loaded), now_s=lambda: 1700.5)


def attempt(path: str = "/v1/chat/completions", engine: str | None = None, **fields: Any) -> Attempt:
    default = {"model": "m", "messages": [{"role": "user", "content": "hé"}]}
    body = {**default, **fields} if path.endswith("chat/completions") else {"model": "m", **fields}
    replica = Replica(ReplicaSpec("grpc://a:1"), pool=POOL, engine=engine, adapters=frozenset({"lora"}))
    return Attempt(replica, "r", path, (), msgspec.json.encode(body), 5.0, 60.0, 60.0)
