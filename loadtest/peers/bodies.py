"""The request bodies: chats of three sizes and two streams. Knows JSON and the fields that mock.c reads; sends nothing.

64 of each, of which every four share the first half of their text, as turns of users with one system prompt do.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.peers.configs import MODEL
from loadtest.words import WORDS

NUM_BODIES = 64
_NUM_SHARING = 4
_FRAME_BYTES = 150  # of a body: what is not text


@dataclass(frozen=True, slots=True)
class Kind:
    """One folder of bodies of `num_bytes` each; `options` are fields beside model and messages."""

    name: str
    num_bytes: int
    options: Mapping[str, object] = field(default_factory=dict)


def _stream(num_events: int, gap_us: int) -> Mapping[str, object]:
    return {"stream": True, "max_tokens": num_events, "seed": gap_us}


# With an "n", which is what OpenAI has without it, each stream begins somewhere else in the gap between its events.
_OWN_TIME = {"n": 1}


_WHOLE = {"temperature": 0.7, "max_tokens": 64}
KINDS = (
    Kind("500b", 500, _WHOLE),
    Kind("8k", 8192, _WHOLE),
    Kind("64k", 65536, _WHOLE),
    Kind("short-stream", 500, _stream(8, 2_000)),
    Kind("long-stream", 500, {**_stream(64, 10_000), **_OWN_TIME}),
    Kind("streams-in-step", 500, _stream(64, 10_000)),
)


def write_bodies(folder: Path) -> None:
    """Write FOLDER/KIND/00.json to 63.json. The same bytes every time; streams say the same as the short chats."""
    for kind in KINDS:
        (folder / kind.name).mkdir(parents=True, exist_ok=True)
        for number, messages in enumerate(conversations(kind.num_bytes)):
            body = {"model": MODEL, "messages": messages, **kind.options}
            (folder / kind.name / f"{number:02d}.json").write_text(json.dumps(body))


def conversations(num_bytes: int) -> list[list[dict[str, str]]]:
    """The messages of each body: a system prompt and a question, of equal length."""
    draw = random.Random(num_bytes)
    half = (num_bytes - _FRAME_BYTES) // 2
    systems = [_text(draw, half) for _ in range(NUM_BODIES // _NUM_SHARING)]
    return [
        [
            {"role": "system", "content": systems[number // _NUM_SHARING]},
            {"role": "user", "content": _text(draw, half)},
        ]
        for number in range(NUM_BODIES)
    ]


def _text(draw: random.Random, length: int) -> str:
    """Words, the last cut short to make exactly `length` characters."""
    return " ".join(draw.choices(WORDS, k=length))[:length]
