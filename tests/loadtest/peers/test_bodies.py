import json
from pathlib import Path

import pytest

from loadtest.peers.bodies import KINDS, NUM_BODIES, Kind, conversations, write_bodies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bodies")
    write_bodies(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_bodies_are_chats_of_the_size_they_are_called_by(folder: Path, kind: Kind) -> None:
    files = sorted((folder / kind.name).glob("*.json"))
    assert len(files) == NUM_BODIES
    for file in files:
        text = file.read_text()
        assert abs(len(text) - kind.num_bytes) < 60
        body = json.loads(text)
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert body.items() >= kind.options.items()


def test_every_four_share_their_first_half_and_no_two_are_alike() -> None:
    chats = conversations(500)
    systems = [chat[0]["content"] for chat in chats]
    assert [systems.count(system) for system in systems] == [4] * NUM_BODIES
    assert systems[0] == systems[3] != systems[4]
    assert len({chat[1]["content"] for chat in chats}) == NUM_BODIES


def test_bodies_are_the_same_each_time() -> None:
    assert conversations(8192) == conversations(8192)
