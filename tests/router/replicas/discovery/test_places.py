"""Replicas from several places together: what they list, and what stands while one of them cannot be asked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from router.replicas.discovery.places import MOST_TRIES, Together, open_places
from router.replicas.discovery.static import StaticDiscovery
from router.spec import ReplicaSpec


@dataclass
class Place:
    specs: Sequence[ReplicaSpec] | None

    async def list(self) -> Sequence[ReplicaSpec]:
        if self.specs is None:
            raise OSError("it is away")
        return self.specs


def specs(*names: str) -> list[ReplicaSpec]:
    return [ReplicaSpec(f"http://{name}") for name in names]


def ids(found: Sequence[ReplicaSpec]) -> list[str]:
    return [spec.id for spec in found]


async def test_named_ones_alone_are_a_list_that_never_changes() -> None:
    places = open_places(["http://a", "http://b:1,ranks=2"])
    assert isinstance(places.discovery, StaticDiscovery)
    assert ids(await places.discovery.list()) == ids(places.examples) == ["a", "b:1", "b:2"]


async def test_all_that_several_places_list_is_there_and_the_first_word_on_each_counts(tmp_path: Path) -> None:
    path = tmp_path / "replicas of mine"
    path.write_text("http://a:1,role=prefill\nhttp://127.0.0.1:2\n")
    texts = ["http://a:1", " dns+http://localhost:2,role=decode ", f"file://{str(path).replace(' ', '%20')}"]
    places = open_places(texts)
    found = {spec.id: spec for spec in await places.discovery.list()}
    assert found["a:1"].role is None
    assert found["127.0.0.1:2"].role == "decode"
    kinds = [(spec.role, spec.url.startswith("grpc"), spec.merge is not None) for spec in places.examples]
    assert kinds == [(None, False, False), ("decode", False, False), ("decode", True, True)], "a file may name any"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file://host/path", "a file of replicas is file:///PATH"),
        ("file:///path,role=decode", "what is to be said of them stands in it"),
        ("file:///no/such/file", "cannot be read: No such file"),
        ("dns+https://a:1", "a certificate names no address"),
    ],
)
def test_a_wrong_place_stops_the_start(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        open_places(["http://a", text])


async def test_a_place_that_cannot_be_asked_keeps_what_it_listed() -> None:
    steady, shaky = Place(specs("a")), Place(specs("b", "c"))
    together = Together([steady, shaky])
    assert ids(await together.list()) == ["a", "b", "c"]
    shaky.specs, steady.specs = None, specs("a", "d")
    assert ids(await together.list()) == ["a", "d", "b", "c"]
    shaky.specs = specs("c")
    assert ids(await together.list()) == ["a", "d", "c"], "it is believed again"


async def test_one_that_never_answers_holds_up_the_others_for_a_few_tries_only() -> None:
    """A list without it would take away what another process knows of it."""
    shaky = Place(None)
    together = Together([Place(specs("a")), shaky])
    for _ in range(MOST_TRIES - 1):
        with pytest.raises(OSError, match="away"):
            await together.list()
    assert ids(await together.list()) == ["a"]
    shaky.specs = specs("b")
    assert ids(await together.list()) == ["a", "b"]


async def test_over_random_outages_what_is_listed_is_the_last_word_of_each_place() -> None:
    dice = Random(4)
    for _ in range(30):
        places = [Place(specs("a")), Place(specs("b"))]
        together = Together(places)
        last: list[Sequence[ReplicaSpec]] = [specs("a"), specs("b")]
        await together.list()
        for _ in range(40):
            for number, place in enumerate(places):
                place.specs = dice.choice([None, specs(*dice.sample("abcdef", dice.randrange(4)))])
                last[number] = last[number] if place.specs is None else place.specs
            found = ids(await together.list())
            assert len(set(found)) == len(found)
            assert set(found) == {spec.id for each in last for spec in each}
