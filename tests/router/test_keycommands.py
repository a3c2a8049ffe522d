"""`pointsman keys` and `pointsman tenants`, as people use them."""

import json
from pathlib import Path

import pytest

from router import cli
from router.admission import records


class Run:
    """A command on one folder: its exit status and what it said."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(self, *words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--state-dir", str(self._folder)])
        return (ended.value.code, *self._capsys.readouterr())


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(tmp_path / "state", capsys)


def test_a_key_lives_from_its_creation_to_its_end(run: Run, tmp_path: Path) -> None:
    status, out, err = run("keys", "create", "--name", "alice", "--class", "low", "--requests-per-minute", "60")
    token = out.strip()
    assert (status, token.startswith("sk-pm-"), "never shown again" in err) == (0, True, True)
    id = records.id_of(token)
    assert token not in (tmp_path / "state" / "keys.json").read_text()
    _, out, _ = run("keys", "list")
    assert id in out
    assert "requests_per_minute=60" in out
    assert run("keys", "change", id, "--requests-per-minute", "none", "--tenant", "acme")[0] == 0
    (shown,) = json.loads(run("keys", "list", "--json")[1])
    assert (shown["tenant"], shown.get("limits", {}), shown["classes"]) == ("acme", {}, ["low"])
    assert "revoked" in run("keys", "revoke", id)[1]


def test_a_tenant_is_set_shown_and_removed(run: Run) -> None:
    assert run("tenants", "set", "acme", "--weight", "3", "--tokens-per-day", "1000")[0] == 0
    assert "tokens_per_day=1000" in run("tenants", "list")[1]
    assert json.loads(run("tenants", "list", "--json")[1]) == [
        {"name": "acme", "weight": 3.0, "limits": {"tokens_per_day": 1000}}
    ]
    assert run("tenants", "remove", "acme")[0] == 0
    assert run("tenants", "remove", "acme")[0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keys", "create", "--requests-per-minute", "0"], "`requests_per_minute` must be at least 1"),
        (["keys", "create", "--tokens-per-day", "lots"], "`tokens_per_day`"),
        (["keys", "change", "nobody", "--name", "x"], "There is no key `nobody`"),
        (["tenants", "set", "t", "--weight", "-1"], "`weight` must be"),
        (["keys", "list", "--redis", "redis://127.0.0.1:1"], "names a store that cannot be used"),
    ],
)
def test_what_is_wrong_is_one_sentence(run: Run, words: list[str], said: str) -> None:
    status, _, err = run(*words)
    assert status in (1, 2) or said in str(status)
    assert said in err + str(status)
