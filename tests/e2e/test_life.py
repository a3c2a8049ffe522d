"""How the whole lives and dies: stops, orphans, a killed replica, and what a user reads when it cannot start."""

import json
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from loadtest.peers.process import free_ports
from tests.e2e.fleet import BIN, MODEL, Fleet, port_of, running, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UP = [str(BIN / "pointsman"), "up"]
STOPS_WITHIN_S = 5.0
PROBE_INTERVAL_S = 2.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_make_alone_stops_all_of_it(number: int) -> None:
    """A stop that reaches only `make`, even one that it cannot pass on, leaves nothing behind."""
    _stops_everything(lambda make: os.kill(make, number))


def test_ctrl_c_stops_all_of_it() -> None:
    """A terminal sends it to the whole group of the foreground job."""
    _stops_everything(lambda make: os.killpg(make, signal.SIGINT))


def _stops_everything(stop: Callable[[int], None]) -> None:
    with running(["make", "up"]) as fleet:
        everything = psutil.Process(fleet.process.pid).children(recursive=True)
        assert len([process for process in everything if "engine" in process.cmdline()]) == 2
        stop(fleet.process.pid)
        _, alive = psutil.wait_procs(everything, timeout=STOPS_WITHIN_S)
    assert alive == []


def test_engines_do_not_outlive_a_killed_router() -> None:
    with running(UP) as fleet:
        engines = fleet.engines()
        fleet.process.kill()
        _, alive = psutil.wait_procs(engines, timeout=STOPS_WITHIN_S)
    assert alive == []


def test_a_killed_replica_harms_only_its_streams_and_comes_back() -> None:
    """Requests not yet begun go to the other replica, streams get an in-band error, and the killed one serves again
    within two probe intervals of its return."""
    with running(UP, POINTSMAN_MAX_IN_FLIGHT="3") as fleet:
        answers: list[str] = []
        begun: set[str] = set()
        threads = [threading.Thread(target=lambda i=i: answers.append(_stream(fleet, i, begun))) for i in range(12)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(begun) == 2, 60, "both replicas stream")
        victim = fleet.engines()[0]
        port = port_of(victim)
        victim.kill()
        fleet.wait_line("died .signal 9.; starting it again")
        for thread in threads:
            thread.join()
        cut = [answer for answer in answers if '"error"' in answer]
        assert len(answers) == 12
        assert 0 < len(cut) <= 3
        for answer in answers:
            assert answer.endswith("data: [DONE]\n\n")
        for answer in cut:
            assert '"finish_reason":"' not in answer
            assert "replica_connection_lost" in answer
        wait_until(lambda: _is_listening(port), 60, "the engine is back")
        wait_until(
            lambda: all(row["state"] == "ready" for row in fleet.replicas()), 2 * PROBE_INTERVAL_S + 1.0, "all serve"
        )


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _stream(fleet: Fleet, number: int, begun: set[str]) -> str:
    """One whole answer; its replica joins `begun` with the first byte."""
    question = [{"role": "user", "content": f"Tell me a story about the number {number}."}]
    body = {"model": MODEL, "messages": question, "stream": True, "max_tokens": 40, "ignore_eos": True}
    request = urllib.request.Request(f"{fleet.url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as response:
        begun.add(response.headers["x-pointsman-replica"])
        return str(response.read().decode())


def test_a_taken_port_is_one_sentence() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = _up_fails(POINTSMAN_PORT=str(port))
    assert done == f"pointsman: The address 127.0.0.1:{port} is already in use; choose another with --port.\n"


def test_no_network_and_no_model_is_a_clear_sentence(tmp_path: Path) -> None:
    nowhere = {"XDG_CACHE_HOME": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": ""}
    said = _up_fails(**nowhere, PIP_CONFIG_FILE=os.devnull, PIP_RETRIES="0")
    assert "is there a network?" in said
    assert f"the model `{MODEL}` is not here and could not be fetched" in said


def test_a_replica_that_cannot_load_is_a_clear_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"GGUF but not really")
    said = _up_fails("--model", str(broken))
    assert "died while starting: pointsman engine:" in said
    assert str(broken) in said


def _up_fails(*arguments: str, **environment: str) -> str:
    """What it says on standard error when it ends with 1, as it must, and without a traceback."""
    port, admin_port = free_ports(2)
    ports = {"POINTSMAN_PORT": str(port), "POINTSMAN_ADMIN_PORT": str(admin_port)}
    command = [*UP, *arguments]
    done = subprocess.run(
        command, env=os.environ | ports | environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr
