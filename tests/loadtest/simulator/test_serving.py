"""A replica as a process: steps last as the profile says, and a word of the load generator is a token."""

import asyncio
import json
import re
import signal
import sys
from dataclasses import dataclass, field

import aiohttp
import pytest

from engine.batch import Batch, Chunk
from engine.config import BLOCK_SIZE
from engine.sampling import Sampling
from engine.sequence import Request, Sequence
from loadtest.simulator.profile import profile
from loadtest.simulator.serving import TimedRunner, open_service, word_tokenizer
from loadtest.simulator.settings import ReplicaSettings
from loadtest.words import WORDS

PROFILE = profile("llama3-8b-h100-tp1")


@dataclass
class Time:
    """Sleeps at once; `late_s` is what each sleep takes too long."""

    now: float = 100.0
    late_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late_s


def runner(time: Time, speed: float = 1.0) -> TimedRunner:
    return TimedRunner(PROFILE, BLOCK_SIZE, speed, len(WORDS) + 1, clock=lambda: time.now, sleep=time.sleep)


def decode(position: int = 99, seed: int = 5) -> Batch:
    sequence = Sequence(Request("r", tuple(range(position + 1)), Sampling(max_tokens=9, seed=seed), 0.0), (0, 0))
    return Batch((Chunk(sequence, position, 1),))


def test_a_step_lasts_as_the_profile_says_divided_by_the_speed() -> None:
    for speed in (1.0, 10.0):
        time = Time()
        runner(time, speed).run(decode())
        assert time.slept == [pytest.approx(PROFILE.step_s([], 1, 99) / speed)]


def test_what_a_step_was_late_is_made_up_for_but_a_pause_is_not() -> None:
    time = Time(late_s=0.002)
    timed, step_s = runner(time), PROFILE.step_s([], 1, 99)
    for _ in range(10):
        timed.run(decode())
    assert time.now - 100.0 == pytest.approx(10 * step_s + 0.002)
    time.now += 60.0
    timed.run(decode())
    assert time.slept[-1] == pytest.approx(step_s)


def test_a_prefill_that_goes_on_samples_nothing_and_answers_depend_on_the_request_alone() -> None:
    timed = runner(Time())
    sequence = Sequence(Request("r", tuple(range(64)), Sampling(max_tokens=9, seed=5), 0.0), (0, 0))
    assert timed.run(Batch((Chunk(sequence, 0, 32),))) == [None]
    assert timed.run(decode(seed=5)) == timed.run(decode(seed=5)) != timed.run(decode(seed=6))
    words = [timed.run(decode(position, 3))[0] for position in range(600)]
    assert all(word is not None and 1 <= word <= len(WORDS) for word in words)


def test_a_word_is_a_token_there_and_back() -> None:
    tokenizer = word_tokenizer()
    text = " ".join(WORDS)
    ids = tokenizer.encode(text)
    assert ids == list(range(1, len(WORDS) + 1))
    assert tokenizer.decode(ids).strip() == text
    chat = tokenizer.encode_chat([{"role": "user", "content": text}])
    assert chat[-len(ids) :] == ids
    assert len(chat) == len(ids) + 1


def test_what_is_asked_for_is_built() -> None:
    service = open_service(ReplicaSettings(kv_tokens=1000, host_tokens=320, adapter_slots=4, model="m"))
    scheduler = service.engine.core.scheduler
    assert (scheduler.pool.num_blocks, scheduler.pool.host.num_blocks, scheduler.adapters.num_slots) == (62, 20, 4)
    assert (service.model_id, service.max_model_len) == ("m", 992)


@pytest.mark.slow
async def test_a_process_answers_as_an_engine_and_in_its_time() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from loadtest.cli import main; sys.exit(main())",
        "replica", "--port", "0", "--speed", "2", stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        ready = re.search(r"http://[\d.:]+", (await process.stderr.readline()).decode())
        assert ready is not None
        body = {"model": "llama3-8b-h100-tp1", "prompt": " ".join(WORDS * 30), "max_tokens": 20}
        async with aiohttp.ClientSession() as session:
            started_s = asyncio.get_running_loop().time()
            async with session.post(f"{ready[0]}/v1/completions", json=body) as answer:
                usage = json.loads(await answer.text())["usage"]
            took_s = asyncio.get_running_loop().time() - started_s
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30 * len(WORDS), 20)
        assert took_s >= PROFILE.prefill_s(30 * len(WORDS)) / 2
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
