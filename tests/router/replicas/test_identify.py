from pathlib import Path

import pytest

from router.errors import BadAnswer
from router.replicas.fetch import open_session
from router.replicas.identify import Card, Identity, TokenizerDocument, identify
from tests.router.replicas.fakes import FakeReplica, make_identity

FIXTURES = Path("tests/fixtures/vllm-0.32-cpu")


async def ask(replica: FakeReplica) -> tuple[Identity, TokenizerDocument | None]:
    async with open_session() as session:
        return await identify(session, replica.spec, 5.0)


async def test_a_vllm_says_model_and_context_and_has_no_tokenizer_to_give() -> None:
    async with FakeReplica() as replica:
        replica.answers["/v1/models"] = (200, (FIXTURES / "models.json").read_bytes())
        identity, document = await ask(replica)
    assert identity.models == ("smollm2",)
    assert identity.max_model_len == 2048
    assert identity.cards[0].created == 1796047567
    assert document is None


async def test_an_engine_that_leaves_fields_out_is_understood() -> None:
    async with FakeReplica() as replica:
        replica.answers["/v1/models"] = (200, {"data": [{"id": "llama", "created": None, "owned_by": 3}]})
        identity, _ = await ask(replica)
    assert identity == Identity((Card("llama"),))
    assert identity.cards[0].owned_by == "unknown"


async def test_entries_with_a_parent_are_adapters_and_further_models_are_aliases() -> None:
    async with FakeReplica("base", "alias", adapters={"sql": "base", "law": "base"}) as replica:
        identity, _ = await ask(replica)
    assert identity.models == ("base", "alias")
    assert identity.adapters == {"sql", "law"}


async def test_our_engine_hands_out_its_tokenizer_and_sizes() -> None:
    given = {"model": "base", "block_size": 32, "max_model_len": 512, "tokenizer": {"model": {}}, "chat_template": "t"}
    async with FakeReplica("base") as replica:
        replica.answers["/pointsman/tokenizer"] = (200, given)
        identity, document = await ask(replica)
    assert (identity.block_size, identity.max_model_len) == (32, 512)
    assert document == given | {"tokenizer": '{"model": {}}'}


@pytest.mark.parametrize("page", [b"<html>welcome</html>", b'{"detail": "no"}', b"[]", b"\xff"])
async def test_a_page_that_is_no_tokenizer_counts_as_none(page: bytes) -> None:
    async with FakeReplica("base") as replica:
        replica.answers["/pointsman/tokenizer"] = (200, page)
        _, document = await ask(replica)
    assert document is None


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"error": "key"}, "status 401"),
        (200, "<html>", "not a model list"),
        (200, b"\xff\xfe", "not a model list"),
        (200, {"data": [{"object": "model"}]}, "not a model list"),
        (200, {"data": []}, "lists no model"),
        (200, {"data": [{"id": "sql", "parent": "base"}]}, "lists no model"),
    ],
)
async def test_a_model_list_that_says_nothing_is_a_bad_answer(status: int, body: object, words: str) -> None:
    async with FakeReplica() as replica:
        replica.answers["/v1/models"] = (status, body)
        with pytest.raises(BadAnswer, match=words):
            await ask(replica)


async def test_an_engine_still_loading_its_tokenizer_is_asked_again_later() -> None:
    async with FakeReplica("base") as replica:
        replica.answers["/pointsman/tokenizer"] = (503, "loading")
        with pytest.raises(BadAnswer, match="not ready"):
            await ask(replica)


def test_the_size_of_a_cache_is_known_in_tokens_where_both_its_measures_are() -> None:
    assert make_identity("m", block_size=16, num_blocks=100).kv_capacity_tokens == 1600
    assert make_identity("m", block_size=16).kv_capacity_tokens is None
    assert make_identity("m", num_blocks=16).kv_capacity_tokens is None
