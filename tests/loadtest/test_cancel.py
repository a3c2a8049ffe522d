import pytest

from loadtest.cancel import Phase, gauge, measure_cancels
from loadtest.errors import LoadError
from loadtest.settings import CancelSettings
from tests.loadtest import fake_server as fake
from tests.loadtest.fake_server import FakeServer


def settings_for(server: FakeServer, **more: object) -> CancelSettings:
    return CancelSettings(**({"url": server.url, "samples": 2, "input_tokens": 4, "timeout_s": 30} | more))  # type: ignore[arg-type]


async def test_both_phases_are_measured(server: FakeServer) -> None:
    server.script = [fake.gated] * 2
    server.otherwise = fake.endless
    summary = await measure_cancels(settings_for(server))
    assert [phase.phase for phase in summary.phases] == [phase.value for phase in Phase]
    for phase in summary.phases:
        assert phase.num_missed == 0
        assert phase.idle_s is not None
        assert phase.kv_back_s is not None
        assert phase.idle_s.count == phase.kv_back_s.count == 2
        assert 0 < phase.idle_s.max <= phase.kv_back_s.max
    assert server.num_running == 0


async def test_each_cancel_sends_a_new_prompt(server: FakeServer) -> None:
    server.script = [fake.gated] * 2
    server.otherwise = fake.endless
    await measure_cancels(settings_for(server, output_tokens=77))
    assert len({body["messages"][0]["content"] for body in server.bodies}) == 4
    assert {body["max_tokens"] for body in server.bodies} == {77}


async def test_answers_that_end_too_soon_are_told(server: FakeServer) -> None:
    server.script = [fake.gated] * 2
    with pytest.raises(LoadError, match="--output-tokens: answers came too soon to be closed in mid-stream"):
        await measure_cancels(settings_for(server))


async def test_an_engine_that_keeps_running_is_told(server: FakeServer) -> None:
    server.num_leaked = 1
    with pytest.raises(LoadError, match=r"--engine-url: not idle before the next cancel .* 1 requests"):
        await measure_cancels(settings_for(server, timeout_s=0.01))


async def test_a_failed_request_is_told(server: FakeServer) -> None:
    server.otherwise = fake.too_many
    with pytest.raises(LoadError, match="--url: HTTP 429: slow down"):
        await measure_cancels(settings_for(server))


async def test_a_server_without_gauges_asks_for_the_engines(server: FakeServer) -> None:
    server.has_metrics = False
    with pytest.raises(LoadError, match=r"--engine-url: .*/metrics answered 404; name the engines"):
        await measure_cancels(settings_for(server))


async def test_several_engines_count_together(server: FakeServer) -> None:
    async with fake.serving(FakeServer(num_leaked=1)) as other:
        with pytest.raises(LoadError, match="1 requests"):
            await measure_cancels(settings_for(server, engine_url=(server.url, other.url), timeout_s=0.01))


def test_a_gauge_is_the_sum_of_its_series() -> None:
    page = '# HELP a_b text\na_b{x="}"} 1.0\na_b{x="2"} 2.5\na_b_more 9\na_c 4e0\n'
    assert gauge(page, "a_b") == 3.5
    assert gauge(page, "a_c") == 4.0
    assert gauge(page, "a") is None
