"""Real engines and a router as processes, and a wire between their KV events that can lose a batch. Knows command lines
and sockets; checks nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import zmq
import zmq.asyncio

from loadtest.errors import LoadError

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
# The smallest that lets a hundred turns evict.
NUM_BLOCKS = 64
MODEL = "interop"
_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
}


@dataclass(eq=False, slots=True)
class Engine:
    """One vLLM. Ports: of HTTP, of its KV events, of their replay, and of the wire that the router hears."""

    program: Path
    model: Path
    port: int
    log: Path
    max_adapters: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def events_address(self) -> str:
        return f"tcp://127.0.0.1:{self.port + 1000}"

    @property
    def replay_address(self) -> str:
        return f"tcp://127.0.0.1:{self.port + 2000}"

    @property
    def wire_address(self) -> str:
        return f"tcp://127.0.0.1:{self.port + 3000}"

    def start(self) -> None:
        bind = "tcp://*:"
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"{bind}{self.port + 1000}",
            "replay_endpoint": f"{bind}{self.port + 2000}",
        }
        command = [str(self.program), "serve", str(self.model), "--served-model-name", MODEL, "--dtype", "float32"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "2048", "--enforce-eager"]
        command += ["--enable-prompt-tokens-details", "--num-gpu-blocks-override", str(NUM_BLOCKS)]
        command += ["--kv-events-config", json.dumps(events)]
        if self.max_adapters:
            command += ["--enable-lora", "--max-loras", str(self.max_adapters), "--max-lora-rank", "64"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | _ENVIRONMENT, start_new_session=True
            )

    async def until_ready(self, session: aiohttp.ClientSession) -> None:
        await _until_answers(session, f"{self.url}/health", self.process, self.log)

    def kill(self) -> None:
        """At once, with all of its processes."""
        _end(self.process, signal.SIGKILL)
        self.process = None

    def __repr__(self) -> str:
        return f"<Engine {self.id} {'runs' if self.process else 'is down'}>"


@dataclass(eq=False, slots=True)
class Wire:
    """Passes KV events on, and loses the next `num_to_lose` batches."""

    engine: Engine
    context: "zmq.asyncio.Context"
    num_to_lose: int = 0
    num_passed: int = 0
    num_lost: int = 0

    async def carry(self) -> None:
        """Until cancelled."""
        with closing(self.context.socket(zmq.SUB)) as source, closing(self.context.socket(zmq.PUB)) as target:
            source.setsockopt_string(zmq.SUBSCRIBE, "")
            source.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
            source.connect(self.engine.events_address)
            target.setsockopt(zmq.LINGER, 0)
            target.bind(self.engine.wire_address)
            while True:
                parts = await source.recv_multipart()
                if self.num_to_lose:
                    self.num_to_lose -= 1
                    self.num_lost += 1
                else:
                    self.num_passed += 1
                    await target.send_multipart(parts)


@dataclass(eq=False, slots=True)
class RouterProcess:
    """`pointsman serve` before the engines, told of their events over the wires."""

    port: int
    num_workers: int
    tokenizer: Path
    log: Path
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.port + 1}"

    def start(self, engines: "list[Engine]") -> None:
        command = [sys.executable, "-m", "router", "serve", "--port", str(self.port)]
        command += ["--admin-port", str(self.port + 1), "--workers", str(self.num_workers)]
        for engine in engines:
            events = f"kv={engine.wire_address},replay={engine.replay_address}"
            command += ["--replica", f"{engine.url},tokenizer={self.tokenizer},{events}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    async def until_ready(self, session: aiohttp.ClientSession) -> None:
        await _until_answers(session, f"{self.admin_url}/readyz", self.process, self.log)


@asynccontextmanager
async def carrying(engines: "list[Engine]") -> AsyncIterator[list[Wire]]:
    """A wire for each engine."""
    context = zmq.asyncio.Context()
    wires = [Wire(engine, context) for engine in engines]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wire.carry()) for wire in wires]
            try:
                yield wires
            finally:
                for task in tasks:
                    task.cancel()
    finally:
        context.destroy(linger=0)


@contextmanager
def stopping(*owners: "Engine | RouterProcess") -> Iterator[None]:
    """Whatever was started is stopped."""
    try:
        yield
    finally:
        for owner in owners:
            _end(owner.process, signal.SIGTERM)


def _end(process: "subprocess.Popen[bytes] | None", number: signal.Signals) -> None:
    if process is None or process.poll() is not None:
        return
    os.killpg(process.pid, number)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _until_answers(
    session: aiohttp.ClientSession, url: str, process: "subprocess.Popen[bytes] | None", log: Path
) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while process is not None and process.poll() is None:
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.25)
    except TimeoutError:
        pass
    raise LoadError(f"{url} does not answer; see {log}")
