"""Structured and free requests in one batch, with logits by chance."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.batch import Batch
from engine.grammar import Grammar, Grammars
from engine.sampler import sample
from engine.sampling import Result
from engine.sequence import FinishReason, Output, Request
from engine.text import TextStream
from engine.tokenizer import Tokenizer
from tests.engine.model.gguf_writer import write_gguf
from tests.engine.model.tiny_tokenizer import METADATA, TOKENS
from tests.engine.requests import core, request

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
    "required": ["ok", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", METADATA, {})
    return Tokenizer.load(path)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.to_json, len(TOKENS), tokenizer.eos_token_ids)


def run_by_chance(batch: Batch, generator: torch.Generator) -> list[Result]:
    num_rows = sum(chunk.num_rows for chunk in batch.chunks)
    return sample(torch.randn(num_rows, len(TOKENS), generator=generator), batch.chunks)


def generate(
    requests: dict[str, tuple[Request, Grammar | None]], tokenizer: Tokenizer, grammars: Grammars
) -> dict[str, tuple[str, Output]]:
    engine, texts = core(), dict.fromkeys(requests, "")
    for asked, grammar in requests.values():
        structure = None if grammar is None else grammars.compile(grammar, "field")
        engine.add(asked, TextStream(tokenizer.decoder(), ()), structure)
    run, last = partial(run_by_chance, generator=torch.Generator().manual_seed(1)), dict[str, Output]()
    while engine.has_work:
        batch = engine.plan()
        for output in engine.commit(batch, run(batch), 0.0):
            texts[output.request_id] += output.text
            last[output.request_id] = output
    return {name: (texts[name], last[name]) for name in requests}


def test_each_output_keeps_to_its_own_grammar_whatever_else_is_in_the_batch(
    tokenizer: Tokenizer, grammars: Grammars
) -> None:
    asked = {
        "schema": (request(name="schema", max_tokens=100), Grammar.json_schema(SCHEMA)),
        "drawn": (request(name="drawn", max_tokens=100, temperature=1.0), Grammar.json_schema(SCHEMA)),
        "choice": (request(name="choice", max_tokens=100, temperature=2.0, top_p=0.9), Grammar.choice(["yes", "no"])),
        "free": (request(name="free", max_tokens=20), None),
    }
    answers = generate(asked, tokenizer, grammars)
    for name in ("schema", "drawn"):
        found = json.loads(answers[name][0])
        assert set(found) == {"ok", "tags"}
        assert answers[name][1].finish_reason is FinishReason.STOP
    assert answers["choice"][0] in ("yes", "no")
    assert answers["free"][1].finish_reason is FinishReason.LENGTH


def test_an_output_that_ignores_the_end_ends_where_nothing_can_follow(tokenizer: Tokenizer, grammars: Grammars) -> None:
    (answer,) = generate(
        {"r": (request(name="r", max_tokens=50, min_tokens=9), Grammar.choice(["abc"]))}, tokenizer, grammars
    ).values()
    assert (answer[0], answer[1].finish_reason) == ("abc", FinishReason.STOP)


def test_a_token_that_the_grammar_does_not_allow_ends_its_request_alone(
    tokenizer: Tokenizer, grammars: Grammars
) -> None:
    engine = core()
    engine.add(request(name="kept"), None, grammars.compile(Grammar.choice(["b"]), "field"))
    engine.add(request(name="other"))
    batch = engine.plan()
    outputs = {output.request_id: output for output in engine.commit(batch, [TOKENS.index("a")] * 2, 0.0)}
    assert outputs["kept"].finish_reason is FinishReason.ERROR
    assert outputs["kept"].error is not None
    assert outputs["kept"].faulty_field == "field"
    assert outputs["other"].finish_reason is None
