"""`pointsman batch` and `pointsman webhooks` in front of several router processes: what they write, what Ctrl-C leaves,
and what an operator sees of webhooks."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.company import company
from tests.e2e.fake_replica import FakeReplica, fake_replicas
from tests.e2e.fleet import BIN, Fleet, get_json, wait_until
from tests.e2e.jobs_chaos import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[FakeReplica]]:
    with fake_replicas(2) as found:
        yield found


@pytest.fixture(scope="module")
def fleet(replicas: list[FakeReplica]) -> Iterator[Fleet]:
    with company(replicas, webhook_http="true", webhook_network="127.0.0.0/8") as running:
        wait_until(lambda: running.replicas(), 60, "replicas are known")
        yield running


def requests_in(path: Path, number: int, pace_s: float = 0.0, url: str = "/v1/chat/completions") -> Path:
    lines = [
        {
            "custom_id": f"c{line}",
            "method": "POST",
            "url": url,
            "body": {"model": "m", "messages": [{"role": "user", "content": f"words {line}"}], "user": str(pace_s)},
        }
        for line in range(number)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def pointsman(fleet: Fleet, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [str(BIN / "pointsman"), *words, "--url", fleet.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def said(path: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}


def begun(fleet: Fleet, path: Path, *words: str) -> "tuple[subprocess.Popen[str], str]":
    """The command while its batch runs, and the batch's id."""
    command = [str(BIN / "pointsman"), "batch", "run", str(path), "--url", fleet.url, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith("runs\n"):
            return process, line.split()[0]
    raise AssertionError("the command ended before there was a batch")


def interrupted(process: "subprocess.Popen[str]") -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    return process.returncode, words


def test_a_file_is_run_and_its_results_lie_beside_it(fleet: Fleet, tmp_path: Path) -> None:
    path = requests_in(tmp_path / "night.jsonl", 30)
    done = pointsman(fleet, "batch", "run", str(path))
    assert done.returncode == 0, done.stderr
    results = tmp_path / "night.results.jsonl"
    assert done.stdout.split() == [str(results)]
    assert "completed: 30 of 30 done, 0 failed" in done.stderr
    assert said(results) == {f"c{line}": f"words {line}" for line in range(30)}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["night.jsonl", "night.results.jsonl"]
    id = done.stderr.split()[done.stderr.split().index("runs") - 1]
    [row] = [line for line in pointsman(fleet, "batch", "list").stdout.splitlines() if line.startswith(id)]
    assert row.split()[1:5] == ["completed", "30", "0", "30"]


def test_what_is_wrong_with_a_file_is_told_by_line(fleet: Fleet, tmp_path: Path) -> None:
    path = requests_in(tmp_path / "bad.jsonl", 2)
    path.write_text(path.read_text() + "{oops\n")
    done = pointsman(fleet, "batch", "run", str(path))
    assert done.returncode == 1
    assert "line 3: The line is wrong" in done.stderr
    (tmp_path / "none.jsonl").write_text("hello\n")
    assert "its first line must be" in pointsman(fleet, "batch", "run", str(tmp_path / "none.jsonl")).stderr
    assert "cannot be read" in pointsman(fleet, "batch", "run", str(tmp_path / "absent.jsonl")).stderr
    assert "There is no batch `batch_x`" in pointsman(fleet, "batch", "resume", "batch_x").stderr


def test_ctrl_c_leaves_a_batch_running_and_it_is_resumed_by_its_id(fleet: Fleet, tmp_path: Path) -> None:
    path = requests_in(tmp_path / "left.jsonl", 40, pace_s=0.5)
    process, id = begun(fleet, path)
    code, words = interrupted(process)
    assert code == 130
    assert f"{id} is left running; its results: pointsman batch resume {id}" in words
    done = pointsman(fleet, "batch", "resume", id, "--output", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert said(tmp_path / "again.results.jsonl") == {f"c{line}": f"words {line}" for line in range(40)}


def test_ctrl_c_cancels_where_that_is_wished(fleet: Fleet, tmp_path: Path) -> None:
    path = requests_in(tmp_path / "stop.jsonl", 300, pace_s=1.0)
    process, id = begun(fleet, path, "--on-interrupt", "cancel")
    wait_until(lambda: get_json(f"{fleet.url}/v1/batches/{id}")["status"] == "in_progress", 60, "it runs")
    code, words = interrupted(process)
    assert (code, f"{id} is cancel" in words) == (130, True)
    done = pointsman(fleet, "batch", "resume", id, "--output", str(tmp_path / "rest"))
    assert done.returncode == 1
    assert "cancelled:" in done.stderr
    errors = [json.loads(line) for line in (tmp_path / "rest.errors.jsonl").read_text().splitlines()]
    assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
    results = tmp_path / "rest.results.jsonl"
    assert len(errors) + (len(said(results)) if results.exists() else 0) == 300


def test_a_batch_is_cancelled_by_its_id(fleet: Fleet, tmp_path: Path) -> None:
    process, id = begun(fleet, requests_in(tmp_path / "f.jsonl", 300, pace_s=1.0))
    assert pointsman(fleet, "batch", "cancel", id).stdout.startswith(f"{id} cancel")
    _, words = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "cancelled:" in words


def test_the_sdk_prefers_to_come_back(fleet: Fleet) -> None:
    messages: Any = [{"role": "user", "content": "later"}]
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="-") as client:
        _prefer(client, messages)


def _prefer(client: openai.OpenAI, messages: Any) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="m", messages=messages, extra_headers={"Prefer": "respond-async"}
    )
    assert raw.status_code == 202
    assert raw.headers["preference-applied"] == "respond-async"
    path = raw.headers["location"].removeprefix("/v1")
    job: dict[str, Any] = {}

    def has_ended() -> bool:
        job.update(client.get(path, cast_to=object))  # type: ignore[call-overload]
        return bool(job["status"] == "succeeded")

    wait_until(has_ended, 60, "the job has ended")
    assert job["response"]["body"]["choices"][0]["message"]["content"] == "later"


def test_webhooks_are_listed_replayed_and_their_secrets_replaced_with_several_workers(fleet: Fleet) -> None:
    receiver = Receiver(first_status=410)
    body = {"model": "m", "messages": [{"role": "user", "content": "tell"}], "webhook_endpoint": receiver.url}
    with receiver.serving(), openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="-") as client:
        secret = admin(fleet, "secrets", "--rotate").stdout.strip()
        job: Any = client.post("/async/chat/completions", cast_to=object, body=body)
        wait_until(lambda: job["id"] in admin(fleet, "list").stdout, 60, "the webhook is given up")
        row = next(line for line in admin(fleet, "list").stdout.splitlines() if line.startswith(job["id"]))
        assert "410" in row
        assert admin(fleet, "replay").stdout == "1 of 1 are sent again\n"
        wait_until(lambda: len(receiver.heads) == 2, 60, "it is sent again")
        (first, sent), (second, _) = receiver.heads
        assert first["webhook-id"] == second["webhook-id"] == f"evt_{job['id']}"
        wait_until(lambda: len(admin(fleet, "list").stdout.splitlines()) == 1, 60, "none is given up")
    unwrapped = client.webhooks.unwrap(sent, first, secret=secret)
    assert unwrapped.type == "response.completed"
    shown = admin(fleet, "secrets")
    assert "rotation" in shown.stdout
    assert secret not in shown.stdout
    assert "There is no asynchronous request `async_x`" in admin(fleet, "replay", "async_x").stderr


def test_keys_of_one_tenant_share_jobs_files_and_batches_and_another_tenant_sees_none(
    replicas: list[FakeReplica], tmp_path: Path
) -> None:
    tokens = [_new_key(tmp_path / "state", tenant) for tenant in ("red", "red", "blue")]
    with company(replicas, state_dir=tmp_path / "state") as own, ExitStack() as stack:
        wait_until(lambda: own.replicas(), 60, "replicas are known")
        clients = [openai.OpenAI(base_url=f"{own.url}/v1", api_key=token) for token in tokens]
        one, other, stranger = (stack.enter_context(client) for client in clients)
        body = {"model": "m", "messages": [{"role": "user", "content": "ours"}]}
        job: Any = one.post("/async/chat/completions", cast_to=object, body=body)
        file = one.files.create(file=requests_in(tmp_path / "f.jsonl", 3), purpose="batch")
        endpoint: Any = "/v1/chat/completions"
        batch = one.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
        seen: Any = other.get(f"/async/{job['id']}", cast_to=object)
        assert seen["id"] == job["id"]
        assert other.files.retrieve(file.id).filename == "f.jsonl"
        assert [each.id for each in other.batches.list()] == [batch.id]
        wait_until(lambda: other.batches.retrieve(batch.id).status == "completed", 60, "the batch is done")
        result = other.batches.retrieve(batch.id).output_file_id
        assert result is not None
        assert len(other.files.content(result).text.splitlines()) == 3
        assert not stranger.batches.list().data
        assert not stranger.files.list().data
        asks: list[Any] = [
            lambda: stranger.get(f"/async/{job['id']}", cast_to=object),
            lambda: stranger.delete(f"/async/{job['id']}", cast_to=object),
            lambda: stranger.batches.retrieve(batch.id),
            lambda: stranger.batches.cancel(batch.id),
            lambda: stranger.files.retrieve(file.id),
            lambda: stranger.files.content(result),
            lambda: stranger.files.delete(file.id),
            lambda: stranger.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h"),
        ]
        for ask in asks:
            with pytest.raises(openai.NotFoundError):
                ask()


def _new_key(state: Path, tenant: str) -> str:
    command = [str(BIN / "pointsman"), "keys", "create", "--tenant", tenant, "--state-dir", str(state)]
    done = subprocess.run([*command, "--name", tenant], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def admin(fleet: Fleet, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [str(BIN / "pointsman"), "webhooks", *words, "--admin-url", fleet.admin_url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
