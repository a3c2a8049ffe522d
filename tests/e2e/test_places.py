"""Replicas that are found while the router runs: in a file that is changed, and behind a name. Real processes."""

from pathlib import Path

import pytest

from tests.e2e.company import ask
from tests.e2e.fake_replica import fake_replicas
from tests.e2e.fleet import BIN, Fleet, running, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WITHIN_S = 60.0


def ready(fleet: Fleet) -> set[str]:
    return {row["id"] for row in fleet.replicas() if row["state"] == "ready"}


@pytest.mark.parametrize("workers", [1, 2])
def test_who_is_written_into_the_file_serves_and_who_is_taken_out_does_not(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "replicas"
    with fake_replicas(2) as (one, other):
        path.write_text(f"{one.url}\n")
        command = [str(BIN / "python"), "-m", "router", "serve", "--workers", str(workers)]
        with running([*command, "--replica", f"file://{path}"], until='"message": "serving"') as fleet:
            wait_until(lambda: ready(fleet) == {one.id}, WITHIN_S, "the first is there")
            path.write_text(f"{one.url}\n{other.url},role=decode\n")
            wait_until(lambda: ready(fleet) == {one.id, other.id}, WITHIN_S, "the second has joined")
            path.write_text("what is this?\n")
            fleet.wait_line("cannot be read, keeping the 2 replicas known")
            assert ready(fleet) == {one.id, other.id}
            path.write_text(f"{other.url}\n")
            wait_until(lambda: ready(fleet) == {other.id}, WITHIN_S, "the first is gone")
            for _ in range(4):
                assert ask(fleet)[::2] == (200, other.id)


def test_a_replica_behind_a_name_serves_under_its_address() -> None:
    with fake_replicas(1) as (replica,):
        command = [str(BIN / "python"), "-m", "router", "serve", "--replica", f"dns+http://localhost:{replica.port}"]
        with running(command, until='"message": "serving"') as fleet:
            wait_until(lambda: replica.id in ready(fleet), WITHIN_S, "it is there")
            assert ask(fleet)[::2] == (200, replica.id)
