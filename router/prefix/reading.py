"""How one model's prompts are read: messages or text to segments, and these through what is known of earlier texts.

Knows a tokenizer and a template; nothing of pools, replicas, threads or waiting. Only what lies behind the deepest
known place of a text is left to be tokenized and hashed.
"""

import random
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Self

import msgspec
from xxhash import xxh3_64_intdigest

from router.core import Prompt
from router.errors import InvalidRequest
from router.prefix.blocks import CacheScope, Media, num_common, prompt_of_text, prompt_of_tokens, text_of_chat
from router.prefix.known import KnownTexts, Place
from router.prefix.messages import MEDIA_MARK, Messages, plain_messages
from router.prefix.source import TokenizerSource
from router.prefix.template import ChatTemplate
from router.prefix.tokens import PromptTokenizer
from router.prefix.turns import Turns

_AT_MARKS = re.compile(f"({MEDIA_MARK})")
_NO_IDS = array("I")
# Conversations that have nothing in common but what the template writes.
_UNALIKE = ("Alpha", "7", "(")


class Unread(msgspec.Struct, eq=False, gc=False):
    """A prompt that lacks the ids of some texts. `finish` takes them in order; equal `keys` mean equal texts."""

    tokenizer: PromptTokenizer
    keys: Sequence[int]
    texts: Sequence[bytes]
    finish: "Callable[[Sequence[array[int]]], Prompt]"


@dataclass(frozen=True, slots=True)
class Beginning:
    """How texts of one kind begin: the seed of their keys, the place before their first segment, and the tokens that
    the template puts at the beginning of all."""

    seed: int
    place: Place
    template_ids: "array[int]"

    @classmethod
    def of(cls, first: "array[int]", template_ids: "array[int]") -> Self:
        """With a seed of its own, so that nothing known under another reading is found."""
        return cls(random.getrandbits(62), Place.before_text(first), template_ids)


@dataclass(frozen=True, slots=True)
class Reading:
    """One model's tokenizer and template, and what stands for the template in plain chats."""

    known: KnownTexts
    tokenizer: PromptTokenizer
    template: ChatTemplate | None
    turns: Turns | None
    chats: Beginning
    completions: Beginning

    @classmethod
    def of(cls, source: TokenizerSource, known: KnownTexts) -> Self:
        """Takes up to a second; raises SourceError naming the field."""
        tokenizer = PromptTokenizer(source.tokenizer)
        special = {"bos_token": source.bos_token, "eos_token": source.eos_token}
        variables = {name: token for name, token in special.items() if token is not None}
        template = None if source.chat_template is None else ChatTemplate(source.chat_template, variables)
        return cls(
            known=known,
            tokenizer=tokenizer,
            template=template,
            turns=None if template is None else Turns.learn(template, tokenizer.cuts),
            chats=Beginning.of(_NO_IDS, _template_ids(tokenizer, template)),
            completions=Beginning.of(tokenizer.first, _NO_IDS),
        )

    def find_chat(self, messages: Messages, options: Mapping[str, object], scope: CacheScope) -> Prompt | Unread:
        """`options` are the template's other variables. Raises InvalidRequest where the template refuses the messages,
        UnicodeEncodeError for a lone surrogate."""
        if self.template is None:
            return prompt_of_text(text_of_chat(messages, options), scope)
        segments = None if options or self.turns is None else self.turns.segments(messages)
        if segments is None:
            return self._find_rendered(self.template, messages, options, scope)
        return self._follow(segments, scope, self.chats)

    def find_completion(self, text: str, scope: CacheScope) -> Prompt | Unread:
        """Raises UnicodeEncodeError for a lone surrogate."""
        segments = self.tokenizer.cuts.segments(text)
        if not self.tokenizer.last:
            return self._follow(segments, scope, self.completions)
        around = self.tokenizer.first, self.tokenizer.last
        return self._unread(segments, lambda ids: prompt_of_tokens(_joined([around[0], *ids, around[1]]), scope))

    def _find_rendered(
        self, template: ChatTemplate, messages: Messages, options: Mapping[str, object], scope: CacheScope
    ) -> Prompt | Unread:
        plain, media_keys = plain_messages(messages, takes_parts=template.takes_parts)
        if not (media_keys or options) and self.turns is not None:
            plain_segments = self.turns.segments(plain)
            if plain_segments is not None:
                return self._follow(plain_segments, scope, self.chats)
        text, cuts = template.render(plain, options), self.tokenizer.cuts
        if not media_keys:
            return self._follow(cuts.segments(text), scope, self.chats)
        segments = [segment for piece in _AT_MARKS.split(text) for segment in cuts.segments(piece)]
        return self._unread(segments, partial(self._with_media, segments, media_keys, scope))

    def _follow(self, segments: Sequence[str], scope: CacheScope, beginning: Beginning) -> Prompt | Unread:
        """The prompt of a text in segments, as far as it is known."""
        texts = [segment.encode() for segment in segments] or [b""]
        key = root = scope.key(beginning.seed)
        keys = []
        for text in texts:
            key = xxh3_64_intdigest(text, key)
            keys.append(key)
        place = self.known.get(key)
        if place is not None:
            return _prompt_at(place, scope)
        num_known, place = self.known.deepest(keys, beginning.place)
        part_keys, parts = self._cut([root, *keys][num_known:], texts[num_known:])
        num_known, place = self.known.deepest(part_keys, place)
        part_keys, parts = part_keys[num_known:], parts[num_known:]
        finish = partial(self._read_on, place, part_keys, scope, beginning.template_ids)
        return Unread(self.tokenizer, part_keys, parts, finish)

    def _cut(self, keys: Sequence[int], texts: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
        """Texts cut further: the key of the place after each part, and the parts. `keys[0]`: of that before all."""
        part_keys, parts = [], []
        for text, key, key_after in zip(texts, keys, keys[1:], strict=False):
            *first, last = self.tokenizer.cuts.parts(text)
            for part in first:
                key = xxh3_64_intdigest(part, key)
                part_keys.append(key)
                parts.append(part)
            part_keys.append(key_after)
            parts.append(last)
        return part_keys, parts

    def _read_on(
        self,
        place: Place,
        keys: Sequence[int],
        scope: CacheScope,
        template_ids: "array[int]",
        encoded: "Sequence[array[int]]",
    ) -> Prompt:
        return _prompt_at(self.known.extend(place, keys, encoded, scope, template_ids), scope)

    def _unread(self, segments: Sequence[str], finish: "Callable[[Sequence[array[int]]], Prompt]") -> Unread:
        """All of a text, known or not."""
        texts = [segment.encode() for segment in segments]
        return Unread(self.tokenizer, [xxh3_64_intdigest(text, self.chats.seed) for text in texts], texts, finish)

    def _with_media(
        self, segments: Sequence[str], media_keys: Sequence[bytes], scope: CacheScope, encoded: "Sequence[array[int]]"
    ) -> Prompt:
        ids = _joined(encoded)
        num_template_tokens = num_common(ids, self.chats.template_ids)
        media = _placed(media_keys, segments, encoded)
        return prompt_of_tokens(ids, scope, media=media, num_template_tokens=num_template_tokens)

    def __repr__(self) -> str:
        return f"<Reading {self.tokenizer!r} {self.turns!r}>"


def _prompt_at(place: Place, scope: CacheScope) -> Prompt:
    line = place.line
    num_template_tokens = min(line.num_template_tokens, place.num_tokens)
    return Prompt(place.num_tokens, line.hashes[: place.num_blocks], scope.block_size, num_template_tokens)


def _template_ids(tokenizer: PromptTokenizer, template: ChatTemplate | None) -> "array[int]":
    """What chats that are unalike begin with all the same; empty where the template refuses such simple ones."""
    if template is None:
        return _NO_IDS
    try:
        texts = [template.render([{"role": "user", "content": content}], {}) for content in _UNALIKE]
    except InvalidRequest:
        return _NO_IDS
    first, *others = [tokenizer.encode(text.encode()) for text in texts]
    return first[: min(num_common(first, other) for other in others)]


def _placed(media_keys: Sequence[bytes], segments: Sequence[str], encoded: "Sequence[array[int]]") -> list[Media]:
    """Each key with the position of its mark. Where the template left some out or repeated them, none can be told
    from another, and all count from the beginning."""
    starts = accumulate(map(len, encoded), initial=0)
    positions = [start for start, segment in zip(starts, segments, strict=False) if segment == MEDIA_MARK]
    if len(positions) != len(media_keys):
        positions = [0] * len(media_keys)
    return list(zip(positions, media_keys, strict=True))


def _joined(encoded: "Iterable[array[int]]") -> "array[int]":
    ids = array("I")
    for part in encoded:
        ids.extend(part)
    return ids
