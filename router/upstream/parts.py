"""Requests of one prompt each as parts of one call, and its answer as an answer for each. Knows OpenAI's bodies of
embeddings and completions; knows no connections and no time.

What was used is split so that the parts are the whole: prompts by their own tokens, completions by what is known of
each (one that was cut at its limit has just so many tokens) and else by the length of their texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from router.core import Surface
from router.errors import BadAnswer

# What takes an engine long by itself gains nothing in company.
MAX_PART_BYTES = 64 * 1024
_INPUTS: Mapping[str, str] = {Surface.EMBEDDINGS: "input", Surface.COMPLETIONS: "prompt"}
# Values with which a completion is one answer to one prompt, in one piece.
_PLAIN: Mapping[str, tuple[bytes, ...]] = {
    "stream": (b"false", b"null"),
    "n": (b"1", b"null"),
    "best_of": (b"1", b"null"),
    "prompt_embeds": (b"null",),
    "kv_transfer_params": (b"null",),
}
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class Part(msgspec.Struct, frozen=True, gc=False):
    """One request: its prompt in JSON, all other fields in JSON with sorted names, and whether the prompt is token
    ids. Parts with the same path, `others` and `is_tokens` can go in one call."""

    path: str
    prompt: bytes
    others: bytes
    is_tokens: bool


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Said(msgspec.Struct):
    """Of a completion, what tells how long it is."""

    text: str = ""
    finish_reason: str | None = None


class _Limit(msgspec.Struct):
    max_tokens: int | None = None


def part_of(path: str, body: bytes) -> Part | None:
    """None where the request must go alone: it has several prompts, is a stream, or is long."""
    name = _INPUTS.get(path)
    if name is None or len(body) > MAX_PART_BYTES:
        return None
    fields = _FIELDS.decode(body)
    if any(bytes(fields[field]) not in plain for field, plain in _PLAIN.items() if field in fields):
        return None
    prompt = _only(bytes(fields.pop(name)))
    if prompt is None:
        return None
    others = msgspec.json.encode(dict(sorted(fields.items())))
    return Part(path, prompt, others, is_tokens=prompt.startswith(b"["))


def joined(parts: Sequence[Part]) -> bytes:
    """The body of one call for all of them."""
    first = parts[0]
    prompts = b",".join(part.prompt for part in parts)
    return b'{"%b":[%b],%b' % (_INPUTS[first.path].encode(), prompts, first.others[1:])


def split(parts: Sequence[Part], num_tokens: Sequence[int | None], body: bytes) -> list[bytes]:
    """The answer's bodies, a part each; `num_tokens` of the prompts, where they are known. Raises BadAnswer."""
    try:
        return _split(parts, num_tokens, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise BadAnswer(f"The replica's answer to several prompts cannot be split: {error}.") from None


def _split(parts: Sequence[Part], num_tokens: Sequence[int | None], body: bytes) -> list[bytes]:
    fields = _FIELDS.decode(body)
    name = "data" if parts[0].path == Surface.EMBEDDINGS else "choices"
    items = _in_order(_ITEMS.decode(fields[name]), len(parts))
    usages = _usages(parts, num_tokens, fields.get("usage"), items)
    id = msgspec.json.decode(fields["id"]) if "id" in fields else None
    zero, told = msgspec.Raw(b"0"), []
    for number, (item, usage) in enumerate(zip(items, usages, strict=True)):
        own: dict[str, Any] = fields | {name: [item | {"index": zero}]}
        if isinstance(id, str):
            own["id"] = f"{id}-{number}"
        if usage is not None:
            own["usage"] = usage
        told.append(msgspec.json.encode(own))
    return told


def _only(prompt: bytes) -> bytes | None:
    """The prompt, where it is one; in JSON."""
    if not prompt.startswith(b"["):
        return prompt
    items = msgspec.json.decode(prompt, type=list[msgspec.Raw])
    if bytes(items[0])[:1] not in b'"[':
        return prompt  # token ids
    return bytes(items[0]) if len(items) == 1 else None


def _in_order(items: list[dict[str, msgspec.Raw]], number: int) -> list[dict[str, msgspec.Raw]]:
    """By their index. Raises BadAnswer where there is not one for each prompt."""
    places = [msgspec.json.decode(item["index"], type=int) if "index" in item else at for at, item in enumerate(items)]
    by_index = dict(zip(places, items, strict=True))
    if sorted(by_index) != list(range(number)) or len(items) != number:
        raise BadAnswer(f"The replica gave {len(items)} answers to {number} prompts.")
    return [by_index[index] for index in range(number)]


def _usages(
    parts: Sequence[Part],
    num_tokens: Sequence[int | None],
    whole: msgspec.Raw | None,
    items: Sequence[Mapping[str, msgspec.Raw]],
) -> list[dict[str, Any] | None]:
    """A usage object for each part; None where the answer has none."""
    if whole is None or bytes(whole) == b"null":
        return [None] * len(parts)
    usage = msgspec.json.decode(whole, type=_Usage)
    prompts = _prompt_shares(usage.prompt_tokens, parts, num_tokens)
    outputs, cached = None, None
    if usage.completion_tokens is not None:
        outputs = _output_shares(usage.completion_tokens, parts, items)
    if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
        cached = apportion(usage.prompt_tokens_details.cached_tokens, prompts)
    told: list[dict[str, Any] | None] = []
    for number, prompt in enumerate(prompts):
        own: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + (outputs[number] if outputs else 0)}
        own |= {} if outputs is None else {"completion_tokens": outputs[number]}
        told.append(own | ({} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached[number]}}))
    return told


def _prompt_shares(total: int, parts: Sequence[Part], num_tokens: Sequence[int | None]) -> list[int]:
    if parts[0].is_tokens:
        num_tokens = [part.prompt.count(b",") + 1 for part in parts]
    known = [number for number in num_tokens if number is not None]
    if len(known) < len(parts):
        return apportion(total, [len(part.prompt) - 2 for part in parts])  # without the quotes
    spare, number = total - sum(known), len(parts)
    if spare >= 0 and spare % number == 0:  # the same few special tokens for each, which we do not count
        return [each + spare // number for each in known]
    return apportion(total, known)


def _output_shares(total: int, parts: Sequence[Part], items: Sequence[Mapping[str, msgspec.Raw]]) -> list[int]:
    said = [msgspec.json.decode(msgspec.json.encode(item), type=_Said) for item in items]
    limit = msgspec.json.decode(parts[0].others, type=_Limit).max_tokens
    exact = [limit if each.finish_reason == "length" and limit is not None else None for each in said]
    rest = total - sum(each for each in exact if each is not None)
    if rest < 0 or (None not in exact and rest):
        return apportion(total, [len(each.text) for each in said])
    open_shares = iter(apportion(rest, [len(each.text) for each, own in zip(said, exact, strict=True) if own is None]))
    return [next(open_shares) if own is None else own for own in exact]


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in the ratio of the weights, whose sum is the total."""
    scale = sum(weights)
    if not scale:
        weights, scale = [1] * len(weights), len(weights)
    shares = [total * weight // scale for weight in weights]
    rests = sorted(range(len(weights)), key=lambda at: -(total * weights[at] % scale))
    for at in rests[: total - sum(shares)]:
        shares[at] += 1
    return shares
