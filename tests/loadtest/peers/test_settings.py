from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.flags import parse
from loadtest.peers.settings import PeersSettings


def test_flags_become_settings() -> None:
    line = "peers --only nginx,smg --rounds 5 --seconds 0.5 --format json --png a.png --scratch /tmp/x"
    assert parse(line.split()) == PeersSettings(
        only="nginx,smg", rounds=5, seconds=0.5, format="json", png=Path("a.png"), scratch=Path("/tmp/x")
    )
    assert parse(["peers"]) == PeersSettings()
    assert parse(["peers", "--features"]) == PeersSettings(features=True)


def test_names_are_split_once_each_in_order() -> None:
    assert PeersSettings(only="smg, nginx,,smg").names() == ("smg", "nginx")
    assert PeersSettings().names() is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("peers --rounds 0", "--rounds: must be at least 1, not 0"),
        ("peers --seconds 0", "--seconds: must be at least 0.1, not 0"),
        ("peers --seconds 601", "--seconds: must be at most 600"),
        ("peers --format csv", "--format: 'csv' is not one of table, json"),
        ("peers --only ,", "--only: names no router"),
        ("peers --only nginx --features", "--only: contradicts --features"),
        ("peers --round 3", "--round: no such flag; did you mean --rounds?"),
    ],
)
def test_a_wrong_line_is_one_sentence_that_names_the_flag(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    assert words in str(caught.value)
