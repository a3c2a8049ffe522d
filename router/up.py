"""`pointsman up`: a model, engine replicas as child processes, and the router in this process, on one screen.

Knows the order of things and what to tell the user. It ends with its parent: `make` may be killed alone.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from router import engines
from router.company import Front, open_front
from router.config import ConfigError, Settings
from router.engines import Engine
from router.telemetry.logs import open_log

DEFAULT_MODEL = "smollm2-135m-instruct"
LOAD_TIMEOUT_S = 300.0
DRAIN_S = 2.0
_POLL_S = 0.1


class UpFailed(Exception):
    """One sentence for the user."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model's name where it has one that we fetch, and where it lies."""

    name: str | None
    path: str

    @property
    def arguments(self) -> Sequence[str]:
        named = [] if self.name is None else ["--served-model-name", self.name]
        return ["--model", self.path, *named]


def up(settings: Settings, num_replicas: int, model: str) -> int:
    """Run until stopped. 0 after a stop, 1 after a failure that one sentence told."""
    if num_replicas < 1:
        raise ConfigError("The flag `--replicas` must be at least 1.")
    failure: BaseException | None = None
    try:
        uvloop.run(_up(settings, num_replicas, model))
    except* (UpFailed, ConfigError) as failures:
        failure = failures.exceptions[0]
    if failure is not None:
        print(f"pointsman: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


async def _up(settings: Settings, num_replicas: int, model: str) -> None:
    stop, opened = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    started = engines.plan(num_replicas, (settings.port, settings.admin_port, settings.grpc_port))
    addresses = tuple(engine.address for engine in started)
    drain_s = min(settings.drain_timeout_s, DRAIN_S)
    settings = replace(settings, replica=addresses, drain_timeout_s=drain_s)
    front = open_front(settings, open_log(settings.log_level))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(front.run(stop, opened.set))
            tasks = [
                group.create_task(_stop_with_parent(stop)),
                group.create_task(_bring_up(front, settings, started, model, opened)),
            ]
            await stop.wait()
            _tell("\nStopping.")
            for task in tasks:
                task.cancel()
    finally:
        await engines.stop(started)


async def _bring_up(
    front: Front, settings: Settings, started: Sequence[Engine], name: str, opened: asyncio.Event
) -> None:
    """Fetch, start, wait until all serve, print the screen, and keep the engines alive. Runs until cancelled."""
    await opened.wait()
    model = await _find(name)
    threads = max(1, (os.cpu_count() or 1) // len(started))
    arguments = [*model.arguments, "--threads", str(threads)]
    _tell(f"Starting {len(started)} engine replicas, {threads} thread(s) each.")
    for engine in started:
        await engine.start(arguments)
    try:
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            await _all_ready(front, started)
    except TimeoutError:
        words = started[0].last_words()
        raise UpFailed(f"the replicas were not ready within {LOAD_TIMEOUT_S:g} s: {words}") from None
    _tell(_screen(settings, str(front.models()[0]["id"]), started))
    await asyncio.gather(*(engine.keep_alive(arguments, _tell) for engine in started))


async def _find(name: str) -> Model:
    if await asyncio.to_thread(os.path.exists, name):
        return Model(None, name)
    try:
        return Model(name, await engines.fetch(name))
    except engines.FetchFailed:
        raise UpFailed(f"the model `{name}` is not here and could not be fetched; why stands above") from None


async def _all_ready(front: Front, started: Sequence[Engine]) -> None:
    """Until every replica serves and the tokenizer is loaded. Raises UpFailed when a replica dies first."""
    while not _is_serving(front):
        for engine in started:
            if engine.is_dead:
                raise UpFailed(f"replica {engine.name} died while starting: {engine.last_words()}")
        await asyncio.sleep(_POLL_S)


def _is_serving(front: Front) -> bool:
    is_ready, detail = front.ready()
    return is_ready and detail["replicas_ready"] == detail["replicas_total"] and bool(front.models())


async def _stop_with_parent(stop: asyncio.Event) -> None:
    parent = os.getppid()
    while not stop.is_set():
        await asyncio.sleep(_POLL_S)
        if os.getppid() != parent:
            stop.set()


def _tell(text: str) -> None:
    print(text, flush=True)


def _screen(settings: Settings, model: str, started: Sequence[Engine]) -> str:
    base = f"http://{settings.host}:{settings.port}/v1"
    question = '[{"role": "user", "content": "What is the capital of France?"}]'
    command = Path(sys.argv[0]).name
    rows = [f"  {engine.name:9} {engine.url}" for engine in started]
    return "\n".join(
        [
            f"\nPointsman is up at {base}",
            f"  {'model':9} {model}",
            *rows,
            f"  {'admin':9} http://{settings.admin_host}:{settings.admin_port}/metrics, `{command} replicas`",
            "\nTry it:",
            f"  curl -N {base}/chat/completions -H 'content-type: application/json' \\",
            f'    -d \'{{"model": "{model}", "stream": true, "temperature": 0, "messages": {question}}}\'\n',
            f'  .venv/bin/python -c \'import openai; c = openai.OpenAI(base_url="{base}", api_key="-"); print(',
            f'    c.chat.completions.create(model="{model}", temperature=0, messages={question})'
            ".choices[0].message.content)'\n",
            f'  .venv/bin/{command} chat "What is the capital of France?"',
            "\nCtrl-C stops all of it.",
        ]
    )
