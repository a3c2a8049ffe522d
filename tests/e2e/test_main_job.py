"""The main job with the real model: the command, curl's protocol and the OpenAI SDK, through router and engines."""

import json
import subprocess
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest

from tests.e2e.fleet import BIN, MODEL, Fleet, get_json, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


def test_the_chat_command_answers_and_says_why(fleet: Fleet) -> None:
    command = [str(BIN / "pointsman"), "chat", "--url", fleet.url, "--why", QUESTION[0]["content"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ANSWER + "\n"
    assert "policy=pointsman; matched_tokens=" in done.stderr


def test_a_raw_stream_is_sse_and_ends_with_done(fleet: Fleet) -> None:
    body = {"model": MODEL, "messages": QUESTION, "stream": True, "temperature": 0}
    request = urllib.request.Request(f"{fleet.url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        head, events = response.headers, response.read().decode().split("\n\n")
    assert head["content-type"].startswith("text/event-stream")
    assert head["x-pointsman-replica"] in {row["id"] for row in fleet.replicas()}
    assert head["x-request-id"]
    assert events[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events[:-2]]
    assert "".join(deltas) == ANSWER


def test_the_sdk_streams_a_chat_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    events = list(stream)
    assert "".join(event.choices[0].delta.content or "" for event in events[:-1]) == ANSWER
    assert events[-2].choices[0].finish_reason == "stop"
    assert events[-1].choices == []
    usage = events[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (37, 8)


def test_the_sdk_completes_text_streamed_and_not(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**options)
    streamed = client.completions.create(**options, stream=True)
    assert whole.choices[0].text.startswith(" Paris")
    assert "".join(event.choices[0].text for event in streamed) == whole.choices[0].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8


def test_a_second_turn_goes_back_to_the_replica_that_holds_the_first(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Name three rivers of Germany, and nothing else."}]
    first = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, temperature=0)
    answer = first.parse()
    assert answer.usage is not None
    messages += [
        {"role": "assistant", "content": answer.choices[0].message.content},
        {"role": "user", "content": "And of Spain?"},
    ]
    second = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, temperature=0)
    usage = second.parse().usage
    assert second.headers["x-pointsman-replica"] == first.headers["x-pointsman-replica"]
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= answer.usage.prompt_tokens - 16


def test_a_fresh_conversation_goes_to_the_idle_replica_with_less_in_its_cache(
    client: openai.OpenAI, fleet: Fleet
) -> None:
    """The template's first block is held by both: it must not glue fresh chats to one replica."""
    for topic in ("bread", "ships", "chess"):
        question: Any = [{"role": "user", "content": f"{topic.upper()} {topic} " * 20}]
        wait_until(lambda: all(row["expected_wait_s"] == 0 for row in fleet.replicas()), 10, "an idle fleet")
        blocks = {row["id"]: row["cached_blocks"] for row in fleet.replicas()}
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=question, max_tokens=4)
        assert blocks[raw.headers["x-pointsman-replica"]] == min(blocks.values())


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list().data] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{not json", 400, None),
        (b'{"messages": []}', 400, "model"),
        (b'{"model": "%s", "messages": []}' % MODEL.encode(), 400, "messages"),
        (b'{"model": "%s", "messages": "hi"}' % MODEL.encode(), 400, "messages"),
        (b'{"model": "nope", "messages": [{"role": "user", "content": "x"}]}', 404, "model"),
        (
            b'{"model": "%s", "max_tokens": -1, "messages": [{"role": "user", "content": "x"}]}' % MODEL.encode(),
            400,
            "max_tokens",
        ),
        (
            b'{"model": "%s", "messages": [{"role": "user", "content": "%s"}]}' % (MODEL.encode(), b"a " * 9000),
            400,
            "messages",
        ),
        (
            b'{"model": "%s", "n": 99, "messages": [{"role": "user", "content": "x"}]}' % MODEL.encode(),
            400,
            "n",
        ),
    ],
)
def test_bad_input_gets_a_clear_error_and_the_process_lives_on(
    fleet: Fleet, body: bytes, status: int, param: str | None
) -> None:
    request = urllib.request.Request(f"{fleet.url}/v1/chat/completions", body)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value as answer:
        error = json.loads(answer.read())["error"]
    assert (answer.code, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert get_json(f"{fleet.url}/readyz")["replicas_ready"] == 2


def test_a_client_that_leaves_in_mid_stream_frees_the_engine(fleet: Fleet) -> None:
    body = {"model": MODEL, "messages": QUESTION, "stream": True, "max_tokens": 4000, "ignore_eos": True}
    request = urllib.request.Request(f"{fleet.url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.readline().startswith(b"data: ")
    wait_until(lambda: all(row["in_flight"] == 0 for row in fleet.replicas()), 5, "no lease is open")
    wait_until(lambda: all(row["running"] == 0 for row in fleet.replicas()), 10, "the engines are idle")


def test_the_replica_table_and_the_metrics_page_show_the_fleet(fleet: Fleet) -> None:
    command = [str(BIN / "pointsman"), "replicas", "--admin-url", fleet.admin_url]
    table = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert table[0].split()[:2] == ["REPLICA", "STATE"]
    assert [row.split()[1] for row in table[1:]] == ["ready", "ready"]
    with urllib.request.urlopen(f"{fleet.admin_url}/metrics", timeout=10) as response:
        page = response.read().decode()
    assert f'pointsman_requests_total{{model="{MODEL}",outcome="ok",status="200"}}' in page


def test_the_bundled_replicas_tell_what_they_hold_and_are_known_exactly(fleet: Fleet, client: openai.OpenAI) -> None:
    assert [row["knowledge"] for row in fleet.replicas()] == ["EXACT", "EXACT"]
    words = "Points and signals and stations and trains. "
    chat: Any = [{"role": "user", "content": words * 20}]
    for expected in (0, 1):
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=chat, max_tokens=1)
        matched = int(raw.headers["x-pointsman-reason"].partition("matched_tokens=")[2].partition(";")[0])
        usage = raw.parse().usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert abs(matched - (usage.prompt_tokens_details.cached_tokens or 0)) <= 16
        assert (matched > 100) is bool(expected)


def test_pointsman_load_measures_the_fleet(fleet: Fleet, tmp_path: Any) -> None:
    report, picture = tmp_path / "load.json", tmp_path / "load.png"
    command = [str(BIN / "pointsman-load"), "run", "--url", fleet.url, "--concurrency", "2", "--requests", "6"]
    command += ["--output-tokens", "8", "--json", str(report), "--png", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TTFT" in done.stdout
    assert json.loads(report.read_text())["results"]["num_succeeded"] == 6
    assert picture.read_bytes().startswith(b"\x89PNG")
