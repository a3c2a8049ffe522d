"""Plain chats to text without running their template. Knows what the template wrote in trials; no tokens, no pools.

Most templates put a fixed text between two contents, which depends on nothing but the roles on both sides. Where that
holds, a chat's text is contents and glue. The glue is learned from chats of marked contents, and then has to prove
itself on many others. What it does not cover (tools, names, media, a template that looks into contents) is rendered.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

from router.errors import InvalidRequest
from router.prefix import samples
from router.prefix.cuts import Cuts
from router.prefix.template import ChatTemplate, Messages

# By the role before and the role after, None for the beginning and the end of a chat: what ends a segment there and
# what begins the next one, which is empty where the segment goes on.
Glue = Mapping[str | None, Mapping[str | None, tuple[str, str]]]

_ROLES = (("system", "developer", "user", "assistant", "tool"), ("system", "user", "assistant"), ("user", "assistant"))
# In three messages each pair of roles stands at the beginning, in the middle and at the end.
_LEARNED_MESSAGES = 3
_MARK = re.compile("Zq[0-9]qZ")
_CONTENTS = (*samples.TEXTS, "  both ends \n", "\n\nx", "x\n", "x ", "0", "None", "word " * 2000)
_NUM_CHATS = 150
_MAX_MESSAGES = 8
# Of so many tags at most, two are tried together.
_MAX_PAIRED = 20


@dataclass(frozen=True, slots=True)
class Turns:
    """What one template writes around the contents of plain chats.

    `refused`: what the template looks for in contents; a chat that has it is not plain.
    """

    glue: Glue
    is_stripped: bool
    refused: tuple[str, ...] = ()

    @classmethod
    def learn(cls, template: ChatTemplate, cuts: Cuts) -> "Turns | None":
        """None where the template does more than glue. Takes some 0.1 s."""
        # Some templates treat answers after the user's last word in another way.
        for is_users_last, roles in product((False, True), _ROLES if template.is_steady else ()):
            glue = _learned_glue(template, roles, is_users_last, cuts)
            for is_stripped in (False, True) if glue else ():
                turns = cls(glue, is_stripped)
                if turns._renders_like(template, _chats(glue)):
                    return turns._refusing(template)
        return None

    def segments(self, messages: Messages) -> list[str] | None:
        """The text of a plain chat, in segments of which each but the first begins with a special token; None for a
        chat that is not plain."""
        refused, is_stripped, glue = self.refused, self.is_stripped, self.glue
        segments, text, between = [], "", glue[None]
        try:
            for message in messages:
                role, content = message["role"], message["content"]
                if len(message) != 2 or not isinstance(content, str) or not isinstance(role, str):
                    return None
                if refused and any(map(content.__contains__, refused)):
                    return None
                ends, begins = between[role]
                if begins:
                    segments.append(text + ends)
                    text = begins
                else:
                    text += ends
                text += content.strip() if is_stripped else content
                between = glue[role]
            ends, begins = between[None]
        except KeyError:
            return None
        segments.append(text + ends)
        if begins:
            segments.append(begins)
        return segments

    def _renders_like(self, template: ChatTemplate, chats: Iterable[Messages]) -> bool:
        pairs = ((self.segments(chat), _rendered(template, chat)) for chat in chats)
        return all(segments is None or "".join(segments) == text for segments, text in pairs)

    def _refusing(self, template: ChatTemplate) -> "Turns":
        """Refuses the literals of the template that change its ways when they are in a content."""
        literals = sorted(filter(str.strip, template.literals), key=len)
        tags = [literal for literal in literals if literal[0] in "<["][:_MAX_PAIRED]
        trials = [(one, [one, f"x{one}y", f"{one} y", f"x {one}"]) for one in literals]
        trials += [(one, [f"{one} x {other}"]) for one, other in permutations(tags, 2)]
        walks, turns = list(_walks(self.glue, 2 * len(self.glue))), self
        for literal, contents in trials:
            if not turns._renders_like(template, _chats_with(walks, contents)):
                turns = replace(turns, refused=(*turns.refused, literal))
        return turns

    def __repr__(self) -> str:
        return f"<Turns of {', '.join(filter(None, self.glue))}>"


def _learned_glue(template: ChatTemplate, roles: Sequence[str], is_users_last: bool, cuts: Cuts) -> Glue:
    """Empty where the marks do not come out once each in their order, or what is between two of them varies."""
    learned: dict[str | None, dict[str | None, str]] = {}
    for length in range(1, _LEARNED_MESSAGES + 1):
        marks = [f"Zq{at}qZ" for at in range(length)]
        for walk in product(roles, repeat=length):
            text = _rendered(template, _chat(walk, marks)) if walk[-1] == "user" or not is_users_last else None
            if text is None:
                continue
            texts = _MARK.split(text)
            if _MARK.findall(text) != marks:
                return {}
            for before, after, between in zip((None, *walk), (*walk, None), texts, strict=True):
                if learned.setdefault(before, {}).setdefault(after, between) != between:
                    return {}
    return {before: {after: _cut(before, text, cuts) for after, text in row.items()} for before, row in learned.items()}


def _cut(before: str | None, text: str, cuts: Cuts) -> tuple[str, str]:
    return cuts.at_mark(text) if before is not None else (text, "")


def _rendered(template: ChatTemplate, chat: Messages) -> str | None:
    try:
        return template.render(chat, {})
    except InvalidRequest:
        return None


def _chats(glue: Glue) -> Iterator[Messages]:
    rng = random.Random(1)
    for walk in _walks(glue, _NUM_CHATS):
        yield _chat(walk, rng.choices(_CONTENTS, k=len(walk)))
    # Each content once more, so that none depends on chance.
    for content, walk in zip(_CONTENTS, _walks(glue, len(_CONTENTS)), strict=True):
        yield _chat(walk, [content])


def _chats_with(walks: Iterable[Sequence[str]], contents: Iterable[str]) -> Iterator[Messages]:
    """Each content once at each place."""
    for content, walk in product(contents, walks):
        for at in range(len(walk)):
            yield _chat(walk, ["x"] * at + [content] + ["x"] * (len(walk) - at))


def _walks(glue: Glue, num_walks: int) -> Iterator[list[str]]:
    """Rows of roles that are followed by one another, from the beginning of a chat to its end."""
    rng = random.Random(2)
    while num_walks:
        walk: list[str] = []
        while (role := rng.choice(list(glue.get(walk[-1] if walk else None, {None: ""})))) is not None:
            walk.append(role)
        if walk and len(walk) <= _MAX_MESSAGES:
            num_walks -= 1
            yield walk


def _chat(walk: Sequence[str], contents: Sequence[str]) -> Messages:
    """Contents by turns, as many as there are roles."""
    return [{"role": role, "content": contents[at % len(contents)]} for at, role in enumerate(walk)]
