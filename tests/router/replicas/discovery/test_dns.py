"""Replicas behind one name: one for each address, with what is said of all of them."""

import re
from collections.abc import Sequence

import pytest

from router.replicas.discovery.dns import DnsDiscovery, resolve
from router.spec import ReplicaSpec


def behind(text: str, *addresses: str) -> DnsDiscovery:
    async def found(name: str, port: int) -> Sequence[str]:
        assert (name, port) == ("llm.example", 8000)
        return addresses

    discovery = DnsDiscovery.of(text)
    return DnsDiscovery(discovery.scheme, discovery.name, discovery.port, discovery.options, found)


async def test_each_address_is_a_replica_with_its_own_feed() -> None:
    discovery = behind("http://llm.example:8000,kv=tcp://{host}:5557,role=decode", "10.0.0.1", "fd00::7")
    assert await discovery.list() == [
        ReplicaSpec("http://10.0.0.1:8000", kv="tcp://10.0.0.1:5557", role="decode"),
        ReplicaSpec("http://[fd00::7]:8000", kv="tcp://[fd00::7]:5557", role="decode"),
    ]
    assert [spec.role for spec in discovery.examples] == ["decode"]
    assert repr(discovery) == "<DnsDiscovery llm.example:8000>"


async def test_ranks_are_counted_behind_each_address() -> None:
    found = await behind("grpc://llm.example:8000,ranks=2", "10.0.0.1", "10.0.0.2").list()
    assert [spec.id for spec in found] == ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001"]


async def test_a_name_is_looked_up_and_no_address_is_found_twice() -> None:
    found = await resolve("localhost", 8000)
    assert "127.0.0.1" in found or "::1" in found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://llm.example:8000", "a certificate names no address"),
        ("ftp://llm.example:8000", "there is no such scheme"),
        ("http://llm.example", "it is dns+http://NAME:PORT, no more and no less"),
        ("http://llm.example:8000/path", "no more and no less"),
        ("http://:8000", "no more and no less"),
        ("http://llm.example:99999", "Port out of range"),
        ("http://llm.example:8000,rol=decode", "did you mean `role`?"),
        ("http://llm.example:8000,models=m", "an outside provider, with `models`, is named by its URL"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        DnsDiscovery.of(text)
