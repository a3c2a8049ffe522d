"""Each pool's tokenizer, from where its replicas say: loaded once, off the event loop, compared with the engine's own.

Composes the prefix room and HTTP to replicas. A tokenizer that cannot be had, or is another than the engine's, is
reported; requests run all the same.
"""

import asyncio
import logging
from array import array
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from router.core import Pool, Replica
from router.prefix.engine_tokens import Ask, Body, EngineTokens, ids_in
from router.prefix.knowledge import Knowledge
from router.prefix.probe import find_fault
from router.prefix.reader import Prompts
from router.prefix.source import SourceError, TokenizerSource
from router.replicas.fetch import open_session
from router.spec import ReplicaSpec

# In place of a path: the engine's own /tokenize is asked for each prompt.
ASK_ENGINE = "engine"
# Of the engines that we know, these can be asked.
WITH_TOKENIZE = frozenset({"vllm", "sglang"})
TIMEOUT = aiohttp.ClientTimeout(total=5.0)

Document = Mapping[str, object]


@dataclass(eq=False, slots=True)
class Tokenizers:
    """`cache_bytes` bounds what is kept of an engine's answers."""

    prompts: Prompts
    knowledge: Knowledge
    logger: logging.Logger
    cache_bytes: int
    _loading: dict[Pool, asyncio.Event] = field(default_factory=dict, init=False)
    _waiting: list[Coroutine[Any, Any, None]] = field(default_factory=list, init=False)
    _group: asyncio.TaskGroup | None = field(default=None, init=False)
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def run(self) -> None:
        """Load and compare until cancelled."""
        async with open_session() as session, asyncio.TaskGroup() as group:
            self._session, self._group = session, group
            try:
                for work in self._waiting:
                    group.create_task(work)
                self._waiting.clear()
                await asyncio.Event().wait()
            finally:
                self._session = self._group = None

    @property
    def is_loading(self) -> bool:
        """Until a pool's tokenizer is loaded its prompts are hashed as text."""
        return not all(loaded.is_set() for loaded in self._loading.values())

    async def loaded(self, pool: Pool) -> None:
        """Wait for this pool's tokenizer, if it is on its way."""
        if (loading := self._loading.get(pool)) is not None:
            await loading.wait()

    def identified(self, replica: Replica, pool: Pool, document: Document | None) -> None:
        """A pool's first replica brings its tokenizer; every one that can be asked is compared with it."""
        spec = replica.spec
        if pool not in self._loading and (document is not None or spec.tokenizer is not None):
            self._loading[pool] = asyncio.Event()
            self._start(self._load(pool, spec, document))
        can_be_asked = replica.engine in WITH_TOKENIZE and spec.url.startswith("http")
        if pool in self._loading and can_be_asked and spec.tokenizer != ASK_ENGINE:
            self._start(self._compare(replica, pool))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if (group := self._group) is None:
            self._waiting.append(work)
        else:
            group.create_task(work)

    async def _load(self, pool: Pool, spec: ReplicaSpec, document: Document | None) -> None:
        try:
            if spec.tokenizer == ASK_ENGINE:
                self.prompts.ask(pool, EngineTokens(self._asking(spec), self.cache_bytes))
                return
            source = await asyncio.to_thread(_source_of, spec, document)
            await asyncio.to_thread(self.prompts.configure, pool, source)
        except SourceError as error:
            fields = {"model": pool.model, "replica": spec.id, "error": str(error)}
            self.logger.warning("no tokenizer: prompts are hashed as text", extra={"fields": fields})
        finally:
            self._loading[pool].set()

    async def _compare(self, replica: Replica, pool: Pool) -> None:
        await self._loading[pool].wait()
        if not self.prompts.has_tokenizer(pool):
            return
        fault = await find_fault(self.prompts, pool, self._asking(replica.spec))
        self.knowledge.probed(replica.id, fault)
        if fault is not None:
            fields = {"model": pool.model, "replica": replica.id, "fault": fault}
            self.logger.warning("the tokenizer is not the engine's", extra={"fields": fields})

    def _asking(self, spec: ReplicaSpec) -> Ask:
        """How to ask this replica."""
        headers = {"content-type": "application/json"}
        if spec.api_key is not None:
            headers["authorization"] = f"Bearer {spec.api_key}"

        async def ask(body: Body) -> "array[int] | None":
            session = self._session
            if session is None:
                return None
            try:
                data = msgspec.json.encode(body)
                async with session.post(f"{spec.url}/tokenize", data=data, headers=headers, timeout=TIMEOUT) as answer:
                    return ids_in(await answer.read()) if answer.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError):
                return None

        return ask

    def __repr__(self) -> str:
        return f"<Tokenizers of {len(self._loading)} pools>"


def _source_of(spec: ReplicaSpec, document: Document | None) -> TokenizerSource:
    """Reads files. Raises SourceError."""
    if spec.tokenizer is not None:
        return TokenizerSource.from_path(spec.tokenizer)
    return TokenizerSource.from_served(document or {})
