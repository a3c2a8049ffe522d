"""The real tokenizer that our rows read prompts with. Knows the engine's command and its tokenizer page, as any router
would; counts tokens with the library itself, so that the router's own counts can be checked against them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import tokenizers

from loadtest.peers.ask import ask
from loadtest.peers.process import free_port, running, wait_until

MODEL = "smollm2-135m-instruct"
_START_S = 900.0  # the first time, the engine fetches the model


def tokenizer_folder(scratch: Path) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json, asked of the engine once. Raises Unavailable."""
    folder = scratch / f"tokenizer-{MODEL}"
    if (folder / "tokenizer_config.json").exists():
        return folder
    document = _ask_engine(scratch)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document.pop("tokenizer")))
    (folder / "tokenizer_config.json").write_text(json.dumps(document))
    return folder


def count_tokens(folder: Path, conversations: Sequence[Sequence[Mapping[str, str]]]) -> float:
    """Mean length of the chats in tokens, the template's included."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(config["chat_template"])
    texts = [
        template.render(messages=messages, add_generation_prompt=True, bos_token=config.get("bos_token"),
                        eos_token=config.get("eos_token"))
        for messages in conversations
    ]  # fmt: skip
    encoder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = encoder.encode_batch(texts, add_special_tokens=False)
    return sum(len(one.ids) for one in encoded) / len(texts)


def _ask_engine(scratch: Path) -> "dict[str, object]":
    port = free_port()
    scratch.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "engine", "--model", MODEL, "--port", str(port), "--kv-cache-gib", "0.05",
               "--exit-with-parent"]  # fmt: skip
    answer: list[bytes] = []

    def what_is_missing() -> str | None:
        try:
            status, body = ask(port, "/pointsman/tokenizer")
        except OSError as error:
            return str(error)
        answer.append(body)
        return None if status == 200 else f"status {status}"

    with running(command, scratch / "engine.log", os.environ, stdin=subprocess.PIPE) as engine:
        wait_until(what_is_missing, engine, _START_S)
    document: dict[str, object] = json.loads(answer[-1])
    return document
