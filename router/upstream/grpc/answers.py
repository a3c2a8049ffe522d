"""What replicas say over gRPC, as the bytes that an OpenAI server would have sent. Knows the shapes of the bodies;
knows no contracts, calls or requests.

An event is put together from pieces that are the same in all events of an answer: only its text is encoded anew.
"""

import base64
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from router.core import Headers

DONE = b"data: [DONE]\n\n"
STREAM: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
JSON: Headers = (("content-type", "application/json"),)

_encode = msgspec.json.Encoder().encode


class Counts(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one choice: of its prompt, of these found in a cache, and of its output so far."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


class Said(msgspec.Struct, frozen=True, gc=False):
    """What one message of a replica adds to a choice. `reason` and `stopped_by` come with its last one: OpenAI's
    finish_reason, and the text or token that stopped it; so does `kept`, which says where its prompt's KV lies."""

    text: str = ""
    reason: str | None = None
    stopped_by: str | int | None = None
    counts: Counts | None = None
    kept: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Title:
    """What is the same in all bodies of an answer. `created` is in seconds of Unix time; `num_samples` choices belong
    to each prompt."""

    id: str
    model: str
    created: int
    is_chat: bool
    num_samples: int = 1

    @property
    def kind(self) -> str:
        return "chat.completion" if self.is_chat else "text_completion"


@dataclass(eq=False, slots=True)
class Told:
    """A stream of events. Choices may come in any order; each has its role first and its reason last."""

    title: Title
    num_choices: int
    wants_usage: bool
    _counts: list[Counts] = field(init=False)
    _has_role: list[bool] = field(init=False)
    _before: list[bytes] = field(init=False)

    headers = STREAM

    def __post_init__(self) -> None:
        title, indexes = self.title, range(self.num_choices)
        self._counts = [Counts()] * self.num_choices
        self._has_role = [not title.is_chat] * self.num_choices
        opening = '{"content":' if title.is_chat else ""
        name = '"delta":' if title.is_chat else '"text":'
        self._before = [self._head() + f'{{"index":{index},{name}{opening}'.encode() for index in indexes]

    def said(self, index: int, said: Said) -> bytes:
        """The events that this makes; maybe none."""
        if said.counts is not None:
            self._counts[index] = said.counts
        if not said.text and said.reason is None:
            return b""
        after = b'},"logprobs":null,' if self.title.is_chat else b',"logprobs":null,'
        event = self._before[index] + _encode(said.text) + after + _ending(said) + b"}]}\n\n"
        if self._has_role[index]:
            return event
        self._has_role[index] = True
        role = f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'
        return self._head() + role.encode() + b"]}\n\n" + event

    def end(self) -> bytes:
        """What comes behind the last choice's end."""
        if not self.wants_usage:
            return DONE
        usage = _encode(usage_of(self._counts, self.title.num_samples))
        return self._head() + b'],"usage":' + usage + b"}\n\n" + DONE

    def _head(self) -> bytes:
        title = self.title
        kind = f"{title.kind}.chunk" if title.is_chat else title.kind
        fields = {"id": title.id, "object": kind, "created": title.created, "model": title.model}
        return b"data: " + _encode(fields)[:-1] + b',"choices":['


@dataclass(eq=False, slots=True)
class Whole:
    """An answer in one piece: nothing of it goes out before all choices have ended."""

    title: Title
    num_choices: int
    _texts: list[list[str]] = field(init=False)
    _last: list[Said] = field(init=False)
    _counts: list[Counts] = field(init=False)

    headers = JSON

    def __post_init__(self) -> None:
        self._texts = [[] for _ in range(self.num_choices)]
        self._last = [Said()] * self.num_choices
        self._counts = [Counts()] * self.num_choices

    def said(self, index: int, said: Said) -> bytes:
        self._texts[index].append(said.text)
        self._last[index] = said
        self._counts[index] = said.counts or self._counts[index]
        return b""

    def end(self) -> bytes:
        title = self.title
        choices = [self._choice(index) for index in range(self.num_choices)]
        fields = {"id": title.id, "object": title.kind, "created": title.created, "model": title.model}
        kept = self._last[0].kept
        more = {} if kept is None else {"kv_transfer_params": kept}
        return _encode({**fields, "choices": choices, "usage": usage_of(self._counts, title.num_samples), **more})

    def _choice(self, index: int) -> dict[str, object]:
        text, last = "".join(self._texts[index]), self._last[index]
        said: dict[str, object] = {"message": {"role": "assistant", "content": text}} if self.title.is_chat else {}
        said = said or {"text": text}
        return {
            "index": index,
            **said,
            "logprobs": None,
            "finish_reason": last.reason,
            "stop_reason": last.stopped_by,
        }


def usage_of(counts: Sequence[Counts], num_samples: int) -> dict[str, object]:
    """The other samples of a prompt find what the first one computed."""
    firsts = counts[::num_samples]
    num_prompt_tokens, num_output_tokens = sum(each.prompt for each in firsts), sum(each.output for each in counts)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached for each in firsts)},
    }


def vectors(model: str, values: Sequence[Sequence[float]], num_tokens: int, *, is_base64: bool) -> bytes:
    """An embeddings answer."""
    shown = [_base64(vector) if is_base64 else list(vector) for vector in values]
    found = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(shown)]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return _encode({"object": "list", "data": found, "model": model, "usage": usage})


def _base64(vector: Sequence[float]) -> str:
    """32-bit floats, the least byte first."""
    packed = array("f", vector)
    return base64.b64encode(packed.tobytes()).decode()


def _ending(said: Said) -> bytes:
    if said.reason is None:
        return b'"finish_reason":null'
    return b'"finish_reason":' + _encode(said.reason) + b',"stop_reason":' + _encode(said.stopped_by)
