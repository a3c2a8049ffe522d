from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from engine.app import build
from engine.config import EngineConfig
from loadtest import handover
from loadtest.errors import LoadError
from tests.engine.server.tiny_service import served, write_tiny_model


@pytest.fixture
async def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, str]]:
    """Two whole engines with a tiny model, the first of which hands out KV."""
    monkeypatch.setattr(handover, "_LEAST_ID", 10)
    monkeypatch.setattr(handover, "_MOST_ID", 200)
    config = EngineConfig(
        model=str(write_tiny_model(tmp_path / "tiny.gguf")), device="cpu", kv_cache_gib=0.002, threads=1
    )
    prefill, decode = build(config), build(config)
    async with (
        served(prefill.service) as first,
        served(decode.service) as second,
        await prefill.transfer.serve("127.0.0.1", 0),
    ):
        yield str(first.make_url("")).rstrip("/"), str(second.make_url("")).rstrip("/")


async def test_what_moved_is_measured_and_the_answers_are_equal(
    urls: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (moved,) = await handover.measure(*urls, [50], num_rounds=2)
    assert (moved.num_tokens, moved.is_equal) == (50, True)
    assert moved.transfer_bytes == 50 // 16 * 2 * 2 * 16 * 16 * 4  # layers, keys and values, block, width, float32
    assert 0 < moved.transfer_s < moved.handed_over_s
    handover.print_table([moved])
    assert "equal" in capsys.readouterr().out


async def test_an_engine_that_hands_out_nothing_is_named(urls: tuple[str, str]) -> None:
    with pytest.raises(
        LoadError, match=f"{urls[1]}: kv_transfer_params: do_remote_decode: this engine hands out no KV"
    ):
        await handover.measure(urls[1], urls[0], [50], num_rounds=1)


async def test_where_no_engine_is_it_says_so() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(LoadError, match=r"http://127\.0\.0\.1:9: no engine answers"):
            await handover.Engine.find(session, "http://127.0.0.1:9")
