"""Several router processes as one: real processes, over replicas that the test plays. What one worker's death, a
replacement, a drain and the supervisor's own end do to the others, and which limits and figures hold over all.
"""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from loadtest.peers.process import free_ports
from tests.e2e.company import DONE, Crowd, Steady, ask, company, counted, figures, in_flight, processes, restart
from tests.e2e.fake_replica import fake_replicas
from tests.e2e.fleet import BIN, Fleet, get_json, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WITHIN_S = 10.0


def test_a_killed_worker_harms_only_its_own_streams_and_comes_back() -> None:
    """Its leases die with it, the others' go on; who comes next is served at once; no counter goes back."""
    with fake_replicas(1) as (replica,), company([replica]) as fleet:
        for _ in range(8):
            assert ask(fleet)[0] == 200
        before = counted(fleet)
        assert before['pointsman_requests_total{model="m",outcome="ok",status="200"}'] == 8
        crowd = Crowd(fleet, 24, num_tokens=100, pace_s=0.1)
        wait_until(lambda: replica.num_open == 24, WITHIN_S, "all stream")
        assert in_flight(fleet) == 24
        victim = next(iter(processes(fleet, "worker").values()))
        victim.kill()
        wait_until(lambda: in_flight(fleet) == replica.num_open < 24, WITHIN_S, "the dead worker's streams are gone")
        num_left = replica.num_open
        assert 0 < num_left < 24
        for _ in range(16):
            status, body, _ = ask(fleet)
            assert (status, body[-len(DONE) :]) == (200, DONE), "whoever's socket it is, a sibling takes it"
        assert in_flight(fleet) == num_left
        fleet.wait_line("worker . .pid [0-9]*. died .signal 9.; starting it again")
        wait_until(lambda: figures(fleet)["pointsman_workers"] == 2, WITHIN_S, "two serve again")
        assert victim.pid not in processes(fleet, "worker")
        crowd.join()
        assert len(crowd.whole) == num_left
        assert in_flight(fleet) == 0
        after = counted(fleet)
        assert {name for name in before if after[name] < before[name]} == set()
        assert after["pointsman_worker_deaths_total"] == 1
        assert get_json(f"{fleet.admin_url}/readyz")["workers_serving"] == 2


def test_a_killed_workers_queue_of_connections_is_served_by_a_sibling() -> None:
    """While both are stopped connections queue up in both sockets. One is killed, the other wakes: none is lost."""
    with fake_replicas(1) as (replica,), company([replica]) as fleet:
        dying, living = processes(fleet, "worker").values()
        dying.suspend()
        living.suspend()
        crowd = Crowd(fleet, 16, num_tokens=2, pace_s=0.0)
        address = urlsplit(fleet.url)
        wait_until(lambda: _num_queued(address.port or 0) == 16, WITHIN_S, "all wait in the kernel")
        dying.kill()
        living.resume()
        crowd.join()
        assert len(crowd.whole) == 16


def _num_queued(port: int) -> int:
    """Connections on a port that its process has not accepted, over all its sockets."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
    return sum(int(row[4].split(":")[1], 16) for row in listening)


@pytest.mark.parametrize("how", ["admin", "hangup"])
def test_workers_are_replaced_under_load_without_a_failed_request(how: str) -> None:
    with fake_replicas(2) as replicas, company(replicas) as fleet:
        first = set(processes(fleet, "worker"))
        before = counted(fleet)
        steady = Steady(fleet, 8)
        wait_until(lambda: steady.num_asked > 20, WITHIN_S, "the load is on")
        if how == "admin":
            restart(fleet)
        else:
            fleet.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: not first & set(processes(fleet, "worker")) and figures(fleet)["pointsman_workers"] == 2,
            30.0,
            "all are new",
        )
        since = steady.num_asked
        wait_until(lambda: steady.num_asked > since + 20, WITHIN_S, "the load goes on")
        steady.stop()
        assert steady.failures == []
        assert len(processes(fleet, "worker")) == 2
        after = counted(fleet)
        assert {name for name in before if after[name] < before[name]} == set()
        served = sum(value for name, value in after.items() if name.startswith("pointsman_requests_total"))
        assert served == steady.num_asked == sum(replica.num_served for replica in replicas)
        assert figures(fleet)["pointsman_worker_deaths_total"] == 0


def test_a_long_stream_outlives_the_replacement_of_its_worker() -> None:
    """Twice, and for longer than a drain may take: nobody waits for the old ones."""
    with fake_replicas(1) as (replica,), company([replica], drain_timeout_s=0.5) as fleet:
        crowd = Crowd(fleet, 8, num_tokens=100, pace_s=0.1)
        wait_until(lambda: replica.num_open == 8, WITHIN_S, "all stream")
        restart(fleet)
        assert in_flight(fleet) == 8
        crowd.join()
        assert len(crowd.whole) == 8
        wait_until(lambda: len(processes(fleet, "worker")) == 2, WITHIN_S, "the old ones have left")
        assert in_flight(fleet) == 0


def test_a_replicas_limit_holds_over_all_workers_and_all_who_wait_are_served() -> None:
    """Two that choose in the same microseconds may go over it by one for each other worker, and no more."""
    with fake_replicas(1) as (replica,), company([replica], max_in_flight=4) as fleet:
        crowd = Crowd(fleet, 60, num_tokens=2, pace_s=0.02)
        crowd.join()
        assert len(crowd.whole) == 60
        assert 4 <= replica.most_open <= 4 + 1
        assert in_flight(fleet) == 0


def test_a_place_freed_in_one_worker_goes_to_who_waits_in_the_other() -> None:
    """One place for all: who waits hears of a release in another process at once, not by asking again."""
    with fake_replicas(1) as (replica,), company([replica], max_in_flight=1, queue_timeout_s=20) as fleet:
        crowd = Crowd(fleet, 40, num_tokens=1, pace_s=0.01)
        crowd.join()
        assert len(crowd.whole) == 40
        assert replica.most_open <= 2
        assert figures(fleet)["pointsman_queue_waiting"] == 0


def test_open_requests_are_limited_over_all_workers() -> None:
    with fake_replicas(1) as (replica,), company([replica], max_open_requests=10) as fleet:
        crowd = Crowd(fleet, 30, num_tokens=4, pace_s=0.3)
        crowd.join()
        statuses = [status for status, _, _ in crowd.answers]
        assert 10 <= statuses.count(200) <= 10 + 1
        assert statuses.count(200) + statuses.count(429) + statuses.count(503) == 30


def test_what_one_worker_sent_where_all_of_them_know() -> None:
    """The same long prompt again and again on new connections: whichever worker has it, it goes to the same replica."""
    words = " ".join(f"word{number}" for number in range(300))
    with fake_replicas(4) as replicas, company(replicas) as fleet:
        found = {ask(fleet, words)[2]}
        wait_until(lambda: _knows_all(fleet), WITHIN_S, "the dispatch is known")
        found |= {ask(fleet, words)[2] for _ in range(16)}
        assert len(found) == 1


def _knows_all(fleet: Fleet) -> bool:
    time.sleep(0.1)  # two workers, and only the larger of their two counts is shown
    return any(row["cached_blocks"] for row in fleet.replicas())


def test_a_drain_reaches_all_workers_and_outlives_the_feed() -> None:
    with fake_replicas(2) as (drained, other), company([drained, other]) as fleet:
        _pointsman(fleet, "drain", drained.id)
        assert {ask(fleet, f"{number}")[2] for number in range(16)} == {other.id}
        next(iter(processes(fleet, "feed").values())).kill()
        fleet.wait_line("the feed .pid [0-9]*. died .signal 9.; starting it again")
        wait_until(lambda: len(processes(fleet, "feed")) == 1, WITHIN_S, "a new feed")
        assert {ask(fleet, f"{number}")[2] for number in range(16)} == {other.id}
        shown = _pointsman(fleet, "replicas")
        assert re.search(rf"{drained.id} +draining", shown)
        _pointsman(fleet, "drain", drained.id, "--undo")
        wait_until(lambda: {row["state"] for row in fleet.replicas()} == {"ready"}, WITHIN_S, "it serves again")


def _pointsman(fleet: Fleet, *words: str) -> str:
    command = [str(BIN / "python"), "-m", "router", *words, "--admin-url", fleet.admin_url]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def test_a_drain_of_nobody_says_who_there_is() -> None:
    with fake_replicas(1) as (replica,), company([replica]) as fleet:
        request = urllib.request.Request(f"{fleet.admin_url}/admin/replicas/nobody:1/drain", b"")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        with refused.value as answer:
            assert answer.status == 404
            assert replica.id in answer.read().decode()


def test_workers_serve_on_without_a_feed_and_hear_the_news_from_the_next() -> None:
    with fake_replicas(2) as (failing, well), company([failing, well], probe_interval_s=0.1) as fleet:
        feed = next(iter(processes(fleet, "feed").values()))
        feed.suspend()
        assert {ask(fleet, f"{number}")[0] for number in range(8)} == {200}
        feed.kill()
        failing.is_well = False
        assert {ask(fleet, f"{number}")[0] for number in range(8)} == {200}
        wait_until(lambda: _states(fleet)[failing.id] != "ready", WITHIN_S, "the next feed finds it ill")
        assert _states(fleet)[well.id] == "ready"
        assert {ask(fleet, f"{number}")[2] for number in range(8)} == {well.id}
        failing.is_well = True
        wait_until(lambda: _states(fleet)[failing.id] == "ready", WITHIN_S, "and well again")


def _states(fleet: Fleet) -> dict[str, str]:
    return {row["id"]: row["state"] for row in fleet.replicas()}


def test_a_stop_drains_all_workers() -> None:
    with fake_replicas(1) as (replica,), company([replica]) as fleet:
        crowd = Crowd(fleet, 12, num_tokens=20, pace_s=0.05)
        wait_until(lambda: replica.num_open == 12, WITHIN_S, "all stream")
        everything = psutil.Process(fleet.process.pid).children(recursive=True)
        fleet.stop()
        crowd.join()
        assert len(crowd.whole) == 12
        assert fleet.process.returncode == 0
        assert psutil.wait_procs(everything, timeout=1)[1] == []


def test_a_drain_has_an_end() -> None:
    with fake_replicas(1) as (replica,), company([replica], drain_timeout_s=0.5) as fleet:
        crowd = Crowd(fleet, 4, num_tokens=10_000, pace_s=0.05)
        wait_until(lambda: replica.num_open == 4, WITHIN_S, "all stream")
        fleet.stop()
        crowd.join()
        assert fleet.process.returncode == 0
        wait_until(lambda: replica.num_open == 0, WITHIN_S, "the replica hears of it")


def test_nothing_is_left_of_a_killed_supervisor_and_streams_end_well() -> None:
    with fake_replicas(1) as (replica,), company([replica]) as fleet:
        crowd = Crowd(fleet, 8, num_tokens=20, pace_s=0.05)
        wait_until(lambda: replica.num_open == 8, WITHIN_S, "all stream")
        everything = psutil.Process(fleet.process.pid).children(recursive=True)
        assert len(everything) == 4, "a feed, two workers and the queue's server"
        (feed,) = processes(fleet, "feed")
        names = _unix_names(feed)
        assert len(names) == 1
        shared = {path for process in everything for path in _mapped(process)}
        assert shared == {"/memfd:pointsman-board"}, "it has no name anywhere: it goes with its last holder"
        fleet.process.kill()
        fleet.process.wait()
        crowd.join()
        assert len(crowd.whole) == 8
        assert psutil.wait_procs(everything, timeout=WITHIN_S)[1] == []
        assert not [name for name in names if name in Path("/proc/net/unix").read_text()]
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", urlsplit(fleet.url).port)) != 0


def _mapped(process: psutil.Process) -> set[str]:
    """Files with our name that a process has mapped."""
    return {part.path for part in process.memory_maps() if "pointsman-" in part.path and ".so" not in part.path}


def test_no_process_holds_more_than_its_own_descriptors() -> None:
    """A line that a sibling holds as well would never end."""
    with fake_replicas(1) as (replica,), company([replica]) as fleet:
        restart(fleet)
        wait_until(lambda: len(processes(fleet, "worker")) == 2, WITHIN_S, "the old ones have left")
        ends = {pid: _unix_sockets(pid) for pid in (*processes(fleet, "worker"), *processes(fleet, "feed"))}
        one, two, feed = ends.values()
        assert not one & two
        # The feed's listener is the supervisor's as well, and no worker's.
        assert not feed & (one | two)


def _unix_names(pid: int) -> set[str]:
    """The addresses of the unix sockets that a process holds."""
    held = _unix_sockets(pid)
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in held}


def _unix_sockets(pid: int) -> set[str]:
    listed = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    found = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return {link for link in found if link.removeprefix("socket:[").removesuffix("]") in listed}


def test_workers_that_cannot_start_are_one_sentence() -> None:
    with fake_replicas(1) as (replica,), company([replica]) as fleet:
        port, admin_port = urlsplit(fleet.url).port, free_ports(1)[0]
        command = [str(BIN / "python"), "-m", "router", "serve", "--workers", "2", "--replica", replica.url]
        command += ["--port", str(port), "--admin-port", str(admin_port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 1
        taken = f"127.0.0.1:{port} is already in use"
        # What it logged before is not in question.
        assert done.stderr.splitlines()[-1] == f"pointsman: The address {taken}; choose another with --port."
        assert "Traceback" not in done.stderr


def test_one_worker_is_one_process() -> None:
    with fake_replicas(1) as (replica,), company([replica], workers=1) as fleet:
        children = psutil.Process(fleet.process.pid).children()
        assert [child.name() for child in children] == ["redis-server"], "beside the queue's server"
        assert ask(fleet)[0] == 200
