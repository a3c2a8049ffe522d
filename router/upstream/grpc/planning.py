"""An attempt's body as the calls that its replica understands. Knows which contract a replica speaks, and that prompts
go in tokens; what fields mean is the contracts' matter."""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from router.core import Attempt, Pool
from router.errors import ContextTooLong, InvalidRequest, UpstreamStatus
from router.openai import normalised_error
from router.ports import Decoder, TokenIds
from router.upstream.grpc import engine_contract, vllm_contract
from router.upstream.grpc.answering import Call, Embedding, Generation, Plan
from router.upstream.grpc.answers import Said, Title, Told, Whole
from router.upstream.grpc.asks import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_CALLS,
    Body,
    Chat,
    Completion,
    Embeddings,
    body_of,
    prompts_of,
    unsupported,
)

# What the watch calls an engine behind vLLM's contract; every other speaks engine.proto.
VLLM = "vllm"
# A longer body is read in a thread.
INLINE_BYTES = 32 * 1024

Prompts = Sequence["str | array[int]"]


@dataclass(frozen=True, slots=True)
class Planner:
    """`now_s` is Unix time, in seconds; `numbers` make ids that no other open request has, whatever clients call
    theirs."""

    ids: TokenIds
    now_s: Callable[[], float] = time.time
    numbers: "count[int]" = field(default_factory=count)

    def now(self, attempt: Attempt) -> Plan | None:
        """None where it must be awaited. Raises InvalidRequest and UpstreamStatus that name the field."""
        if len(attempt.body) > INLINE_BYTES:
            return None
        body = body_of(attempt.path, attempt.body)
        prompts: list[str | array[int]] = []
        for content, options in _contents(body, attempt):
            found = self.ids.now(_pool(attempt), content, options)
            if found is None:
                return None
            prompts.append(_as_array(found))
        return self._plan(attempt, body, prompts or _ready(body))

    async def soon(self, attempt: Attempt) -> Plan:
        """As `now`, and waits for a tokenizer and for long prompts."""
        body, pool = body_of(attempt.path, attempt.body), _pool(attempt)
        prompts: list[str | array[int]] = []
        for content, options in _contents(body, attempt):
            found = await self.ids.soon(pool, content, options)
            if found is None and not isinstance(content, str):
                raise self._no_ids(pool)
            prompts.append(str(content) if found is None else _as_array(found))
        return self._plan(attempt, body, prompts or _ready(body))

    def _no_ids(self, pool: Pool) -> UpstreamStatus:
        if self.ids.decoder(pool) is None:
            return no_tokenizer(pool)
        return unsupported("messages", "they hold more than text, or the tokenizer has no chat template")

    def _plan(self, attempt: Attempt, body: Body, prompts: Prompts) -> Plan:
        request_id = f"{attempt.request_id}-{next(self.numbers):x}"
        if isinstance(body, Embeddings):
            return _embedding(attempt, body, prompts, request_id)
        if len(prompts) * (body.n or 1) > MAX_CALLS:
            raise InvalidRequest(f"At most {MAX_CALLS} choices may be asked for at once.", param="n")
        _fit(body, prompts, _pool(attempt))
        contract = vllm_contract if _speaks_vllm(attempt) else engine_contract
        calls = list(contract.generating(body, prompts, request_id, _adapter(attempt, body)))
        return Plan(calls, self._generation(attempt, body, calls))

    def _generation(self, attempt: Attempt, body: Chat | Completion, calls: Sequence[Call]) -> Generation:
        is_chat, num_choices = isinstance(body, Chat), len(calls)
        id = f"{'chatcmpl' if is_chat else 'cmpl'}-{attempt.request_id}"
        title = Title(id, body.model, int(self.now_s()), is_chat, body.n or 1)
        answer = Told(title, num_choices, body.wants_usage) if body.stream else Whole(title, num_choices)
        return Generation(answer, self._reader(attempt, body, num_choices), num_choices)

    def _reader(self, attempt: Attempt, body: Chat | Completion, num_choices: int) -> Callable[[int, bytes], Said]:
        if not _speaks_vllm(attempt):
            return engine_contract.said
        decoders = [self._decoder(_pool(attempt)) for _ in range(num_choices)]
        return vllm_contract.Reading.of(body, decoders).said

    def _decoder(self, pool: Pool) -> Decoder:
        found = self.ids.decoder(pool)
        if found is None:
            raise no_tokenizer(pool)
        return found


def no_tokenizer(pool: Pool) -> UpstreamStatus:
    """Another replica may do without, and ours may come."""
    why = (
        f"The router has no tokenizer for `{pool.model}`, whose replica is spoken to in tokens; give it tokenizer=PATH."
    )
    return UpstreamStatus(503, normalised_error(503, why.encode()))


def _contents(body: Body, attempt: Attempt) -> Sequence[tuple[object, Mapping[str, object]]]:
    """What is to be tokenized, and how; nothing where the replica is sent what there is."""
    if isinstance(body, Chat):
        return [(body.messages, body.template_options)]
    if isinstance(body, Embeddings) and not _speaks_vllm(attempt):
        return ()
    given = _ready(body)
    if not all(isinstance(each, str) for each in given):
        return ()
    asked = body.add_special_tokens if isinstance(body, Completion) else None
    options: Mapping[str, object] = {} if asked is None else {"add_special_tokens": asked}
    return [(text, options) for text in given]


def _ready(body: Body) -> Prompts:
    if isinstance(body, Embeddings):
        return prompts_of(body.input, "input")
    return () if isinstance(body, Chat) else prompts_of(body.prompt, "prompt")


def _fit(body: Chat | Completion, prompts: Prompts, pool: Pool) -> None:
    """Refuse what the context does not hold, by the name that the client knows; vLLM would go on to its end. A
    completion of which nobody says how long it may get has OpenAI's few tokens, or what is left."""
    room, wanted = pool.max_model_len, body.most_tokens
    longest = max((len(each) for each in prompts if not isinstance(each, str)), default=0)
    if room is not None and longest + max(wanted or 0, 1) > room:
        words = f"The context holds {room} tokens, too few for {longest} of prompt and {wanted or 1} of output."
        raise ContextTooLong(words, param="messages" if isinstance(body, Chat) else "prompt")
    if wanted is None and isinstance(body, Completion):
        left = DEFAULT_COMPLETION_TOKENS if room is None else room - longest
        body.max_tokens = min(DEFAULT_COMPLETION_TOKENS, left)


def _embedding(attempt: Attempt, body: Embeddings, texts: Prompts, request_id: str) -> Plan:
    is_base64 = body.encoding_format == "base64"
    if _speaks_vllm(attempt):
        calls, read = list(vllm_contract.embedding(texts, request_id)), vllm_contract.found
    else:
        calls, read = list(engine_contract.embedding(texts)), engine_contract.found
    return Plan(calls, Embedding(body.model, read, len(calls), len(texts), is_base64))


def _adapter(attempt: Attempt, body: Chat | Completion) -> str | None:
    return body.model if body.model in attempt.replica.adapters else None


def _speaks_vllm(attempt: Attempt) -> bool:
    return attempt.replica.engine == VLLM


def _pool(attempt: Attempt) -> Pool:
    return attempt.replica.pool or Pool("")


def _as_array(ids: Sequence[int]) -> "array[int]":
    return ids if isinstance(ids, array) else array("I", ids)
