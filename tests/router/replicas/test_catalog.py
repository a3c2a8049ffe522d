import random

import pytest

from router.errors import UnknownModel
from router.replicas.catalog import Catalog
from router.replicas.member import Member
from tests.router.replicas.fakes import make_identity, make_member


def make_catalog(*members: Member) -> Catalog:
    catalog = Catalog()
    catalog.rebuild(members)
    return catalog


def test_replicas_of_one_model_share_a_pool() -> None:
    members = [make_member("a"), make_member("b"), make_member("c", make_identity("other"))]
    catalog = make_catalog(*members)
    assert members[0].replica.pool is members[1].replica.pool is catalog.resolve("m")[0]
    assert members[2].replica.pool is catalog.resolve("other")[0]


def test_a_pool_stays_the_same_object_while_anybody_serves_it() -> None:
    first, second = make_member("a"), make_member("b")
    catalog = make_catalog(first)
    pool = catalog.pools["m"]
    catalog.rebuild([first, second])
    catalog.rebuild([second])
    assert catalog.pools == {"m": pool}
    catalog.rebuild([])
    assert catalog.pools == {}


def test_an_adapter_resolves_to_its_pool_and_itself() -> None:
    catalog = make_catalog(make_member("a", make_identity("m", adapters=["sql"])), make_member("b"))
    assert catalog.resolve("sql") == (catalog.pools["m"], "sql")
    assert catalog.resolve("m") == (catalog.pools["m"], None)


def test_an_alias_resolves_to_the_pool_of_the_first_name() -> None:
    catalog = make_catalog(make_member("a", make_identity("m", "alias")), make_member("b", make_identity("m", "alias")))
    assert catalog.resolve("alias") == (catalog.pools["m"], None)


def test_an_alias_that_one_replica_of_the_pool_lacks_does_not_resolve() -> None:
    catalog = make_catalog(make_member("a", make_identity("m", "alias")), make_member("b", make_identity("m")))
    with pytest.raises(UnknownModel):
        catalog.resolve("alias")
    assert [entry["id"] for entry in catalog.models()] == ["m"]


def test_a_pools_own_name_wins_over_an_alias_and_an_adapter() -> None:
    catalog = make_catalog(
        make_member("a", make_identity("m", "x", adapters=["y"])),
        make_member("b", make_identity("x")),
        make_member("c", make_identity("y", max_model_len=5)),
    )
    assert catalog.resolve("x") == (catalog.pools["x"], None)
    assert catalog.resolve("y") == (catalog.pools["y"], None)
    assert [(entry["id"], entry["parent"]) for entry in catalog.models()] == [("m", None), ("x", None), ("y", None)]


def test_an_unknown_model_is_refused_with_the_names_there_are() -> None:
    catalog = make_catalog(make_member("a", make_identity("m", adapters=["sql"])))
    with pytest.raises(UnknownModel) as caught:
        catalog.resolve("nope")
    assert caught.value.message == "The model `nope` does not exist. Known models: m, sql."
    assert caught.value.param == "model"


def test_an_unknown_model_among_hundreds_names_only_some() -> None:
    catalog = make_catalog(make_member("a", make_identity("m", adapters=[f"adapter-{i:03}" for i in range(300)])))
    with pytest.raises(UnknownModel, match=r"adapter-019 and 281 more\.$"):
        catalog.resolve("nope")


def test_a_pool_can_what_all_its_replicas_can() -> None:
    catalog = make_catalog(
        make_member("a", make_identity("m", max_model_len=4096)),
        make_member("b", make_identity("m", block_size=32, max_model_len=2048)),
        make_member("c", make_identity("m")),
    )
    pool = catalog.pools["m"]
    assert (pool.block_size, pool.max_model_len) == (32, 2048)


@pytest.mark.parametrize(("engines", "guessed"), [(None, 32), (1, 32), (5, 35), (16, 32), (128, 128)])
def test_blocks_are_whole_pages_of_the_engine_and_never_tiny(engines: int | None, guessed: int) -> None:
    assert make_catalog(make_member("a", make_identity("m", block_size=engines))).pools["m"].block_size == guessed


@pytest.mark.parametrize(("engines", "told"), [(None, 16), (1, 16), (5, 20), (16, 16), (128, 128)])
def test_blocks_are_smaller_where_one_replica_tells_of_them(engines: int | None, told: int) -> None:
    teller = make_member("b", make_identity("m", block_size=engines), kv="tcp://b:5557")
    catalog = make_catalog(make_member("a", make_identity("m", block_size=engines)), teller)
    assert catalog.pools["m"].block_size == told


def test_models_are_listed_in_openais_shape_with_parents() -> None:
    catalog = make_catalog(make_member("a", make_identity("m", adapters=["sql"])), make_member("b"))
    assert catalog.models()[1] == {
        "id": "sql",
        "object": "model",
        "created": 0,
        "owned_by": "unknown",
        "root": "sql",
        "parent": "m",
        "max_model_len": None,
    }
    assert [entry["id"] for entry in catalog.models()] == ["m", "sql"]


def test_what_is_listed_resolves_and_what_resolves_is_listed() -> None:
    """Random fleets: names, pools and cards agree, and every identified replica is in its pool."""
    dice = random.Random(2)
    names = ["a", "b", "c", "d", "e", "f"]
    catalog = Catalog()
    for _ in range(500):
        members = []
        for i in range(dice.randrange(5)):
            models = dice.sample(names, dice.randint(1, 3))
            adapters = dice.sample(names, dice.randrange(3))
            members.append(make_member(f"r{i}", make_identity(*models, adapters=adapters)))
        catalog.rebuild(members)
        listed = [str(entry["id"]) for entry in catalog.models()]
        assert len(listed) == len(set(listed))
        for name in names:
            if name in listed:
                pool, _ = catalog.resolve(name)
                assert catalog.pools[pool.model] is pool
            else:
                with pytest.raises(UnknownModel):
                    catalog.resolve(name)
        for member in members:
            assert member.replica.pool is catalog.pools[member.replica.models[0]]
