"""Texts to vectors, against a whole engine."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.model.fields import ModelError
from engine.model.pooling_files import read_pooling
from engine.sampling import Pooling, Sampling
from engine.sequence import Request
from engine.server.http import Service
from tests.engine.model.tiny_tokenizer import TOKENS
from tests.engine.server.tiny_service import HIDDEN, Client, served, tiny_service

ASKED = {"model": "tiny", "input": "hello world"}
LONG = "hello world 12 " * 20


async def embed(client: Client, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/embeddings", json=ASKED | fields)
    answer: dict[str, Any] = await response.json()
    assert response.status == 200, answer
    return answer


def vectors(answer: dict[str, Any]) -> "np.ndarray[Any, Any]":
    assert [row["index"] for row in answer["data"]] == list(range(len(answer["data"])))
    return np.array([row["embedding"] for row in answer["data"]])


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("chunk_tokens", [8, 256])
async def test_a_vector_is_of_length_one_and_the_same_however_it_was_computed(
    tmp_path: Path, pooling: str, chunk_tokens: int
) -> None:
    service = tiny_service(tmp_path, pooling=pooling, max_num_batched_tokens=chunk_tokens)
    async with served(service) as client:
        first, again = await embed(client, input=LONG), await embed(client, input=LONG)
        assert vectors(first).shape == (1, HIDDEN)
        assert np.linalg.norm(vectors(first)) == pytest.approx(1)
        # The second finds the first one's KV, as far as its pooling allows.
        np.testing.assert_allclose(vectors(again), vectors(first), atol=1e-5)
        together = await embed(client, input=["x", LONG, "hello"])
        np.testing.assert_allclose(vectors(together)[1], vectors(first)[0], atol=1e-5)
        assert together["usage"] == {
            "prompt_tokens": sum(_num_tokens(service, text) for text in ("x", LONG, "hello")),
            "total_tokens": together["usage"]["prompt_tokens"],
        }
        assert service.engine.core.scheduler.pool.num_used == 0


def _num_tokens(service: Service, text: str) -> int:
    return len(service.tokenizer.encode(text))


async def test_the_mean_is_that_of_the_last_states_of_each_prefix(tmp_path: Path) -> None:
    """The state behind each token is what `last` gives for the text up to it."""
    tokens = [TOKENS.index(letter) for letter in "abcde"]
    async with served(tiny_service(tmp_path / "m", pooling="mean")) as client:
        mean = vectors(await embed(client, input=tokens))[0]
    service = tiny_service(tmp_path / "l", pooling="last")
    async with served(service):
        states = [await _state(service, tokens[:end]) for end in range(1, len(tokens) + 1)]
    expected = torch.tensor(np.array(states)).mean(dim=0)
    np.testing.assert_allclose(mean, expected / expected.norm(), atol=1e-5)


async def _state(service: Service, tokens: list[int]) -> Any:
    request = Request(f"r{len(tokens)}", tuple(tokens), Sampling(max_tokens=0), 0.0, pooling=Pooling.LAST)
    with service.engine.submit(request) as outputs:
        return [output.vector async for output in outputs][-1]


async def test_vectors_and_generations_mix_in_one_batch(tmp_path: Path) -> None:
    async with served(tiny_service(tmp_path)) as client:
        alone = vectors(await embed(client, input="hello"))
        text = {"model": "tiny", "prompt": "x", "max_tokens": 40, "temperature": 0}
        plain = await (await client.post("/v1/completions", json=text)).json()
        generating = asyncio.gather(*(client.post("/v1/completions", json=text) for _ in range(3)))
        together = vectors(await embed(client, input=["hello"] * 3))
        np.testing.assert_allclose(together, alone.repeat(3, axis=0), atol=1e-5)
        for response in await generating:
            assert (await response.json())["choices"] == plain["choices"]


async def test_base64_holds_the_same_numbers(tmp_path: Path) -> None:
    async with served(tiny_service(tmp_path)) as client:
        floats = vectors(await embed(client))[0]
        (row,) = (await embed(client, encoding_format="base64"))["data"]
        decoded = np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4")
        np.testing.assert_allclose(decoded, floats, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ""}, "input", None),
        ({"input": []}, "input", None),
        ({"input": ["a", 3]}, "input[1]", None),
        ({"input": [999]}, "input", None),
        ({"input": "x" * 600}, "input", "context_length_exceeded"),
        ({"dimensions": 8}, "dimensions", None),
        ({"encoding_format": "hex"}, "encoding_format", None),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "unsupported_parameter"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], param: str, code: str | None
) -> None:
    async with served(tiny_service(tmp_path)) as client:
        response = await client.post("/v1/embeddings", json=ASKED | fields)
        error = (await response.json())["error"]
        assert (response.status, error["param"], error["code"]) == (400, param, code)
        assert vectors(await embed(client, dimensions=HIDDEN)).shape == (1, HIDDEN)


async def test_a_client_that_goes_away_frees_its_blocks(tmp_path: Path) -> None:
    service = tiny_service(tmp_path, max_num_batched_tokens=8)
    async with served(service) as client:
        asking = asyncio.create_task(client.post("/v1/embeddings", json=ASKED | {"input": ["x" * 500] * 8}))
        while not service.engine.core.has_work:
            await client.get("/health")
        asking.cancel()
        await asyncio.wait([asking])
        while service.engine.core.has_work:
            await client.get("/health")
        assert service.engine.core.scheduler.pool.num_used == 0
        assert sum(service.engine.core.stats.finished.values()) >= 8


@pytest.mark.parametrize(
    ("text", "pooling"),
    [
        ('{"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true}', Pooling.MEAN),
        ('{"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}', Pooling.LAST),
    ],
)
def test_a_models_folder_says_how_to_pool(tmp_path: Path, text: str, pooling: Pooling) -> None:
    assert read_pooling(tmp_path) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(text)
    assert read_pooling(tmp_path) is pooling


@pytest.mark.parametrize("text", ["{}", '{"pooling_mode_cls_token": true}'])
def test_a_pooling_that_is_not_supported_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(text)
    with pytest.raises(ModelError, match="pooling_mode_mean_tokens or pooling_mode_lasttoken"):
        read_pooling(tmp_path)
