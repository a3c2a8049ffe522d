"""`python -m loadtest.interop --vllm PROGRAM --model FOLDER`: two real vLLMs behind `pointsman serve`: what must hold.

Asks over the wire alone: chats through the router, and its admin pages. Starts and stops all that it needs. PROGRAM is
the `vllm` of an environment of its own, built for CPUs; FOLDER a small model with a chat template.
"""

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from loadtest.errors import LoadError, UsageError
from loadtest.interop.engines import MODEL, Engine, RouterProcess, Wire, carrying, stopping
from loadtest.words import WORDS

BLOCK_TOKENS = 128
NUM_TALKS = 12
FIRST_PORT = 18100
ADAPTER = "adapter"
WAIT_S = 60.0
_MATCHED = re.compile(r"matched_tokens=(\d+)")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the router expected to find in the cache, and what the engine found there; in tokens."""

    talk: int
    replica: str
    prompt_tokens: int
    expected: int
    reported: int

    @property
    def agrees(self) -> bool:
        return abs(self.expected - self.reported) <= BLOCK_TOKENS


@dataclass(eq=False, slots=True)
class Talk:
    """A conversation that grows."""

    number: int
    messages: list[dict[str, str]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Trial:
    """`results` are (what, whether it held, detail), in their order."""

    session: aiohttp.ClientSession
    router: RouterProcess
    engines: list[Engine]
    wires: list[Wire]
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    adapter: Path | None = None
    talks: list[Talk] = field(default_factory=list)
    results: list[tuple[str, bool, str]] = field(default_factory=list)

    async def run(self, num_turns: int) -> None:
        await self._until("both are EXACT", self._are_exact)
        await self._converse(num_turns)
        await self._lose_a_batch()
        if self.adapter is not None:
            await self._load_adapter(self.adapter)
        await self._kill_one()
        if self.adapter is not None:
            await self._until("it is given its adapter again", self._has_adapter)
            await self._unload_adapter()

    async def _converse(self, num_turns: int) -> None:
        shared = self._words(150)
        self.talks = [
            Talk(at, [_message("system", self._words(40 * at) if at % 2 else shared)]) for at in range(NUM_TALKS)
        ]
        turns = [await self._turn(self.rng.choice(self.talks)) for _ in range(num_turns)]
        num_agreeing = sum(turn.agrees for turn in turns)
        num_found = sum(turn.reported > 0 for turn in turns)
        off = [f"{turn.expected} expected, {turn.reported} reported" for turn in turns if not turn.agrees]
        detail = f"{num_agreeing} of {len(turns)} turns within a block; {num_found} found something cached {off[:3]}"
        self.results.append(("what is expected in the cache is there", num_agreeing == len(turns), detail))
        self._judge_sticking(turns)
        used = {turn.replica for turn in turns}
        self.results.append(("both were used", len(used) == 2, ", ".join(sorted(used))))

    def _judge_sticking(self, turns: Sequence[Turn]) -> None:
        last: dict[int, str] = {}
        num_again = num_stuck = 0
        for turn in turns:
            if turn.talk in last:
                num_again += 1
                num_stuck += last[turn.talk] == turn.replica
            last[turn.talk] = turn.replica
        share = num_stuck / max(1, num_again)
        self.results.append(("a conversation sticks", share >= 0.9, f"{num_stuck} of {num_again} later turns"))

    async def _lose_a_batch(self) -> None:
        wire, talk = self.wires[0], Talk(100, [_message("system", self._words(160))])
        while (await self._turn(talk)).replica != wire.engine.id:
            talk = Talk(talk.number + 1, [_message("system", self._words(160))])
        wire.num_to_lose = 1
        for _ in range(40):
            if wire.num_lost:
                break
            await self._turn(talk)
        turns = [await self._turn(talk) for _ in range(4)]
        fine = bool(wire.num_lost) and all(turn.agrees and turn.reported for turn in turns)
        detail = f"{wire.num_lost} lost; then {[(turn.expected, turn.reported) for turn in turns]}"
        self.results.append(("a lost batch is made good", fine, detail))
        await self._until("both are EXACT after it", self._are_exact)

    async def _kill_one(self) -> None:
        engine = self.engines[1]
        before = await self._row(engine)
        engine.kill()
        await self._until("its blocks leave the index", self._has_no_blocks)
        turn = await self._turn(self.talks[0])
        self.results.append(("the other one serves", turn.replica == self.engines[0].id, turn.replica))
        engine.start()
        await engine.until_ready(self.session)
        await self._until("EXACT again after a restart", self._are_exact)
        turns = [await self._turn(Talk(200 + at, [_message("system", self._words(200))])) for at in range(8)]
        row = await self._row(engine)
        detail = f"{before['cached_blocks']} blocks before, {row['cached_blocks']} after"
        came_back = row["cached_blocks"] > 0 and all(turn.agrees for turn in turns)
        self.results.append(("its blocks come back as they are stored", came_back, detail))

    async def _load_adapter(self, path: Path) -> None:
        status, answer = await self._order("load", lora_name=ADAPTER, lora_path=str(path))
        states = [each["state"] for each in answer.get("replicas", [])]
        self.results.append(("an adapter is loaded on both", status == 200 and states == ["loaded"] * 2, str(answer)))
        said = {model: {await self._say(model) for _ in range(2)} for model in (MODEL, ADAPTER)}
        differs = len(set.union(*said.values())) == 2
        self.results.append(("it says something else than the model", differs, str(said)))

    async def _unload_adapter(self) -> None:
        status, _ = await self._order("unload", lora_name=ADAPTER)
        is_gone = not any(ADAPTER in row["models"] for row in await self._rows())
        self.results.append(("it is unloaded everywhere", status == 200 and is_gone, f"status {status}"))

    async def _order(self, verb: str, **fields: str) -> tuple[int, dict[str, Any]]:
        async with self.session.post(f"{self.router.url}/v1/{verb}_lora_adapter", json=fields) as response:
            return response.status, await response.json()

    async def _say(self, model: str) -> str:
        body = {"model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        async with self.session.post(f"{self.router.url}/v1/completions", json=body) as response:
            answer = await response.json()
            return str(answer["choices"][0]["text"]) if response.status == 200 else f"status {response.status}"

    async def _has_adapter(self) -> bool:
        return ADAPTER in (await self._row(self.engines[1]))["models"]

    async def _turn(self, talk: Talk) -> Turn:
        talk.messages.append(_message("user", self._words(self.rng.randint(5, 120))))
        body = {"model": MODEL, "messages": talk.messages, "max_tokens": self.rng.randint(1, 12), "temperature": 0}
        async with self.session.post(f"{self.router.url}/v1/chat/completions", json=body) as response:
            answer: dict[str, Any] = await response.json()
            if response.status != 200:
                raise LoadError(f"the router answered {response.status}: {answer}")
            reason, replica = response.headers["x-pointsman-reason"], response.headers["x-pointsman-replica"]
        talk.messages.append(_message("assistant", answer["choices"][0]["message"]["content"]))
        if len(talk.messages) > 13:
            del talk.messages[1:]
        usage, matched = answer["usage"], _MATCHED.search(reason)
        details = usage.get("prompt_tokens_details") or {}
        expected = int(matched.group(1)) if matched else 0
        return Turn(talk.number, replica, usage["prompt_tokens"], expected, details.get("cached_tokens") or 0)

    async def _until(self, what: str, holds: Any) -> None:
        begun = monotonic()
        is_so = await holds()
        while not is_so and monotonic() - begun < WAIT_S:
            await asyncio.sleep(0.1)
            is_so = await holds()
        self.results.append((what, is_so, f"after {monotonic() - begun:.1f} s"))

    async def _are_exact(self) -> bool:
        return all(row["knowledge"] == "EXACT" and row["state"] == "ready" for row in await self._rows())

    async def _has_no_blocks(self) -> bool:
        return bool((await self._row(self.engines[1]))["cached_blocks"] == 0)

    async def _row(self, engine: Engine) -> dict[str, Any]:
        return next(row for row in await self._rows() if row["id"] == engine.id)

    async def _rows(self) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.router.admin_url}/admin/replicas") as response:
            rows: list[dict[str, Any]] = (await response.json())["replicas"]
            return rows

    def _words(self, num_words: int) -> str:
        return " ".join(self.rng.choices(WORDS, k=num_words))


def main(argv: Sequence[str] | None = None) -> int:
    """Print what held and what did not; 1 where something did not."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.interop", description="Real vLLMs behind the router.")
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm program, built for CPUs")
    parser.add_argument("--model", type=Path, required=True, help="folder of a small model with a chat template")
    parser.add_argument("--adapter", type=Path, help="folder of an adapter of it, as PEFT saves them, to be tried too")
    parser.add_argument("--turns", type=int, default=100, help="turns of conversation; default 100")
    parser.add_argument("--workers", type=int, default=1, help="router processes; default 1")
    flags = parser.parse_args(argv)
    try:
        results = asyncio.run(_run(flags.vllm, flags.model, flags.adapter, flags.turns, flags.workers))
    except LoadError as error:
        print(f"loadtest.interop: {error}", file=sys.stderr)
        return error.exit_code
    print_results(results)
    return 0 if all(held for _, held, _ in results) else 1


def print_results(results: Sequence[tuple[str, bool, str]]) -> None:
    table = Table(title="vLLM behind Pointsman", title_justify="left")
    for header in ("what", "held", "detail"):
        table.add_column(header)
    for what, held, detail in results:
        table.add_row(what, "yes" if held else "NO", detail)
    Console(width=160).print(table)


async def _run(
    vllm: Path, model: Path, adapter: Path | None, num_turns: int, num_workers: int
) -> list[tuple[str, bool, str]]:
    needed = [("--vllm", vllm), ("--model", model / "tokenizer.json")]
    for flag, path in [*needed, *([] if adapter is None else [("--adapter", adapter / "adapter_config.json")])]:
        if not path.is_file():
            raise UsageError(f"{flag}: there is no file {path}")
    logs = Path(mkdtemp(prefix="pointsman-interop-"))
    print(f"logs: {logs}", flush=True)
    engines = [
        Engine(vllm, model, FIRST_PORT + at, logs / f"vllm-{at}.log", int(adapter is not None)) for at in range(2)
    ]
    router = RouterProcess(FIRST_PORT + 10, num_workers, model, logs / "router.log")
    with stopping(router, *engines):
        async with aiohttp.ClientSession() as session, carrying(engines) as wires:
            for engine in engines:
                engine.start()
            for engine in engines:
                await engine.until_ready(session)
            router.start(engines)
            await router.until_ready(session)
            trial = Trial(session, router, engines, wires, adapter=adapter)
            await trial.run(num_turns)
            return trial.results


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


if __name__ == "__main__":
    sys.exit(main())
