"""Flags of the simulator's two commands, checked before anything runs."""

import pytest

from loadtest.errors import UsageError
from loadtest.flags import parse
from loadtest.simulator.settings import ReplicaSettings, SimSettings


def test_policies_are_taken_once_in_their_order() -> None:
    assert SimSettings(policy=" b,a ,b,").policies() == ("b", "a")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--speed", "0"], "--speed"),
        (["--port", "65536"], "--port"),
        (["--kv-tokens", "8"], "--kv-tokens"),
        (["--kv-replay", "tcp://*:5558"], "--kv-events"),
        (["--kv-events", "tcp://127.0.0.1:5557"], "--kv-events"),
        (["--profil", "x"], "did you mean --profile"),
    ],
)
def test_a_wrong_flag_of_a_replica_is_named(flags: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        parse(["replica", *flags])


def test_a_replica_takes_an_address_to_listen_on() -> None:
    parsed = parse(["replica", "--kv-events", "ipc:///tmp/a", "--kv-replay", "ipc:///tmp/b", "--speed", "2"])
    assert parsed == ReplicaSettings(kv_events="ipc:///tmp/a", kv_replay="ipc:///tmp/b", speed=2.0)
