import asyncio

import pytest

from loadtest.client import Client, choose_model, connect
from loadtest.errors import LoadError, UsageError
from loadtest.sample import Fault
from loadtest.wire import Ask, Message, Wire
from tests.loadtest import fake_server as fake
from tests.loadtest.fake_server import MODEL, FakeServer


def ask(is_streamed: bool = True, endpoint: str = "chat") -> Ask:
    return Wire(MODEL, endpoint, is_streamed, ignore_eos=False).ask((Message("user", "say three words"),), 3)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_a_whole_stream_is_a_success_with_its_usage(client: Client, server: FakeServer, endpoint: str) -> None:
    sample, text = await client.ask(ask(endpoint=endpoint))
    assert sample.failure is None
    assert text == "one two three"
    assert (sample.num_input_tokens, sample.num_output_tokens, sample.num_cached_tokens) == (40, 3, 16)
    assert (sample.num_chunks, sample.num_sent_words, sample.replica) == (3, 3, "r1")
    assert len(sample.gaps_s) == 2
    assert sample.first_token_s is not None
    assert sample.sent_s <= sample.first_token_s <= sample.ended_s


async def test_an_answer_that_is_not_streamed_has_no_first_token_time(client: Client) -> None:
    sample, text = await client.ask(ask(is_streamed=False))
    assert sample.failure is None
    assert text == "one two three"
    assert (sample.ttft_s, sample.tpot_s, sample.gaps_s, sample.num_output_tokens) == (None, None, (), 3)


@pytest.mark.parametrize(
    ("behaviour", "fault", "words"),
    [
        (fake.too_many, Fault.HTTP_STATUS, "slow down"),
        (fake.in_band_error, Fault.IN_BAND, "replica died"),
        (fake.without_finish, Fault.CUT, "finish_reason"),
        (fake.without_done, Fault.CUT, "[DONE]"),
        (fake.cut, Fault.CUT, "within the answer"),
        (fake.hung_up, Fault.CUT, "before the answer"),
        (fake.not_a_stream, Fault.CUT, "finish_reason"),
    ],
)
async def test_an_answer_that_is_not_whole_is_a_failure(
    client: Client, server: FakeServer, behaviour: fake.Behaviour, fault: Fault, words: str
) -> None:
    server.otherwise = behaviour
    sample, _ = await client.ask(ask())
    assert sample.failure is not None
    assert sample.failure.fault is fault
    assert words in sample.failure.message


async def test_a_status_is_part_of_the_failures_label(client: Client, server: FakeServer) -> None:
    server.otherwise = fake.too_many
    sample, _ = await client.ask(ask())
    assert sample.failure is not None
    assert sample.failure.label == "HTTP 429"


async def test_a_server_that_is_away_refuses(client: Client) -> None:
    async with connect("http://127.0.0.1:9", None, 30) as lost:
        sample, _ = await lost.ask(ask())
        assert sample.failure is not None
        assert sample.failure.label == "refused"
        with pytest.raises(LoadError, match="--url: cannot reach"):
            await lost.models()


async def test_silence_is_a_timeout(server: FakeServer) -> None:
    server.otherwise = fake.gated
    async with connect(server.url, None, timeout_s=0.01) as hasty:
        sample, _ = await hasty.ask(ask())
    assert sample.failure is not None
    assert sample.failure.fault is Fault.TIMEOUT


async def test_a_body_that_does_not_end_after_the_end_mark_is_whole(
    client: Client, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.client._BODY_END_S", 0.01)
    server.otherwise = fake.withheld_end
    sample, text = await client.ask(ask())
    assert sample.failure is None
    assert text == "one two three"


async def test_connections_are_used_again(client: Client, server: FakeServer) -> None:
    for _ in range(5):
        await client.ask(ask())
    assert len(server.peers) == 1


@pytest.mark.parametrize("behaviour", [fake.gated, fake.endless])
async def test_cancelling_closes_the_connection(client: Client, server: FakeServer, behaviour: fake.Behaviour) -> None:
    server.otherwise = behaviour
    waiting = asyncio.create_task(client.ask(ask()))
    await server.until(lambda: server.num_running == 1)
    waiting.cancel()
    await server.until(lambda: server.num_running == 0)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_leaving_at_the_first_token_closes_the_connection(client: Client, server: FakeServer) -> None:
    server.otherwise = fake.endless
    answer = await client.ask_and_leave(ask())
    assert repr(answer) == "<Answer OPEN 1 chunks>"
    await server.until(lambda: server.num_running == 0)


async def test_the_key_is_sent_as_a_bearer_token(server: FakeServer) -> None:
    async with connect(server.url + "/v1/", "secret", 30) as trusted:
        await trusted.models()
        await trusted.ask(ask())
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer secret"] * 2


async def test_models_are_listed(client: Client, server: FakeServer) -> None:
    assert await client.models() == [MODEL]
    server.models_status = 404
    assert await client.models() is None


@pytest.mark.parametrize(
    ("status", "models", "error", "words"),
    [
        (401, {"error": {"message": "who?"}}, UsageError, "--api-key: .*401: who?"),
        (500, {"error": {"message": "broken"}}, LoadError, "500: broken"),
        (200, {"models": []}, LoadError, "not an OpenAI server"),
        (200, [], LoadError, "not an OpenAI server"),
        (200, {"data": ["x"]}, LoadError, "not an OpenAI server"),
    ],
)
async def test_a_strange_list_of_models_is_told(
    client: Client, server: FakeServer, status: int, models: object, error: type[LoadError], words: str
) -> None:
    server.models_status, server.models = status, models
    with pytest.raises(error, match=words):
        await client.models()


def test_the_model_is_the_wanted_or_the_first() -> None:
    assert choose_model(None, ["a", "b"]) == "a"
    assert choose_model("b", ["a", "b"]) == "b"
    assert choose_model("c", None) == "c"


@pytest.mark.parametrize(
    ("wanted", "offered", "words"),
    [
        (None, None, "name one"),
        (None, [], "no model yet"),
        ("llama-3", ["llama-3b", "other"], "did you mean llama-3b?"),
        ("zzz", ["a", "b"], "it has a, b"),
    ],
)
def test_a_model_that_is_not_there_is_told(wanted: str | None, offered: list[str] | None, words: str) -> None:
    with pytest.raises(LoadError, match=f"--model: .*{words}"):
        choose_model(wanted, offered)
