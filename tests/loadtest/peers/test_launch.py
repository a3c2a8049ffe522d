from pathlib import Path

import pytest

from loadtest.peers.configs import Site
from loadtest.peers.launch import FEATURES, OURS, PEERS, Row, rows

REPLICAS = tuple(f"http://127.0.0.1:{port}" for port in (5001, 5002, 5003, 5004))


def site(tokenizer: Path | None = Path("/tokens")) -> Site:
    return Site(
        folder=Path("/scratch"), port=5100, side_port=5101, replicas=REPLICAS, key="sk-secret", tokenizer=tokenizer
    )


def test_the_table_has_every_router_that_we_promise() -> None:
    assert {row.name for row in rows(None)} == {
        "pointsman", "pointsman-new-tail", "pointsman-new", "nginx", "haproxy", "envoy", "smg", "sglang-router",
        "vllm-router", "production-stack", "litellm",
    }  # fmt: skip


@pytest.mark.parametrize("name", PEERS)
def test_each_launch_names_its_port_and_every_replica(name: str) -> None:
    peer = PEERS[name]
    said = " ".join(peer.arguments(site())) + " ".join(peer.files(site()).values())
    assert "5100" in said
    for port in (5001, 5002, 5003, 5004):
        assert str(port) in said


@pytest.mark.parametrize("name", PEERS)
def test_each_launch_gets_the_files_that_its_arguments_name(name: str) -> None:
    peer = PEERS[name]
    named = {word.removeprefix("/scratch/") for word in peer.arguments(site()) if word.startswith("/scratch/")}
    assert named == set(peer.files(site()))


@pytest.mark.parametrize("name", PEERS)
def test_each_router_is_pinned_or_says_how_to_install_it(name: str) -> None:
    peer = PEERS[name]
    if peer.packages:
        assert all("==" in package or "@" in package for package in peer.packages)
    else:
        assert peer.hint or name == "pointsman"


def test_our_router_reads_prompts_with_the_tokenizer_unless_told_otherwise() -> None:
    arguments = PEERS["pointsman"].arguments
    assert f"--replica={REPLICAS[0]},tokenizer=/tokens" in arguments(site())
    assert f"--replica={REPLICAS[0]}" in arguments(site(tokenizer=None))


def test_our_name_stands_for_our_three_rows() -> None:
    assert rows(("nginx", "pointsman")) == (Row("nginx", "nginx"), *OURS)
    assert rows(("pointsman-new", "pointsman"))[0] == OURS[2]
    assert len(rows(("pointsman-new", "pointsman"))) == 3


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(KeyError, match="engine-x"):
        rows(("nginx", "engine-x"))


def test_each_feature_row_differs_from_our_plain_row() -> None:
    assert len({row.name for row in FEATURES}) == len(FEATURES)
    for row in FEATURES:
        assert row.peer == "pointsman"
        assert row.flags or not row.has_tokenizer
