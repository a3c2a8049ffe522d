"""`python -m loadtest.guesses [--model M]`: what prompt lookup saves, on a text that repeats itself and on one that
does not. Two engines, one that guesses and one that does not, are asked by turns; the ratio is of CPU time.

Speaks to both over the wire. Knows nothing of how they guess. A greedy answer that differs between them is an error.
"""

import argparse
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.table import Table

from loadtest.errors import LoadError

NUM_TOKENS = 96
CODE = "".join(f"def add_{i}(a: int, b: int) -> int:\n    return a + b + {i}\n\n\n" for i in range(6))
TEXTS = {
    "code that goes on": CODE + "def add_6(",
    "a story": "Once upon a time, in a village by the sea, there lived an old clockmaker who",
}


@dataclass(frozen=True, slots=True)
class Engine:
    process: psutil.Process
    url: str

    def answer(self, prompt: str) -> tuple[str, float]:
        """The greedy answer, and the CPU seconds that it took."""
        fields = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"model": "m", **fields}).encode()
        before_s = self._cpu_s()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as response:
            text: str = json.load(response)["choices"][0]["text"]
        return text, self._cpu_s() - before_s

    def _cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Saving:
    """CPU milliseconds a token: the best of all rounds, as whatever else runs here can only add."""

    plain_ms: float
    guessed_ms: float


def measure(model: str, num_guesses: int, num_rounds: int) -> dict[str, Saving]:
    """By text. Raises LoadError if an engine does not start, or guessing changed an answer."""
    with ExitStack() as opened:
        plain = opened.enter_context(_started(model))
        guessing = opened.enter_context(_started(model, "--prompt-lookup-tokens", str(num_guesses)))
        return {name: _saving(plain, guessing, text, num_rounds) for name, text in TEXTS.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.guesses", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as the engine takes it")
    parser.add_argument("--guesses", type=int, default=4, help="tokens guessed in a step (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="answers of each engine (default: %(default)s)")
    asked = parser.parse_args(arguments)
    try:
        savings = measure(asked.model, asked.guesses, asked.rounds)
    except LoadError as error:
        print(f"loadtest.guesses: {error}", file=sys.stderr)
        return 1
    table = Table(title=f"prompt lookup of {asked.guesses} tokens, one request", title_justify="left")
    for header in ("text", "plain, CPU ms a token", "guessing", "times faster"):
        table.add_column(header, justify="right")
    for name, saving in savings.items():
        ratio = saving.plain_ms / saving.guessed_ms
        table.add_row(name, f"{saving.plain_ms:.1f}", f"{saving.guessed_ms:.1f}", f"{ratio:.2f}")
    Console().print(table)
    return 0


def _saving(plain: Engine, guessing: Engine, text: str, num_rounds: int) -> Saving:
    costs: dict[Engine, float] = {}
    answers = set()
    # The first round fills the prefix caches, and is not counted.
    for number in range(num_rounds + 1):
        for engine in (plain, guessing):
            answer, cpu_s = engine.answer(text)
            answers.add(answer)
            if number:
                costs[engine] = min(cpu_s, costs.get(engine, cpu_s))
    if len(answers) > 1:
        raise LoadError(f"guessing changed the answer: {sorted(answers)}")
    return Saving(*(1000 * costs[engine] / NUM_TOKENS for engine in (plain, guessing)))


@contextmanager
def _started(model: str, *flags: str) -> Iterator[Engine]:
    """One thread: two that wait for each other would cost CPU time without computing."""
    command = [sys.executable, "-m", "engine", "--model", model, "--served-model-name", "m", "--threads", "1"]
    with subprocess.Popen([*command, "--port", "0", *flags], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if "ready" not in line:
                raise LoadError(f"the engine does not start: {line.strip()}")
            yield Engine(psutil.Process(process.pid), line.rsplit(" ", 1)[1].strip())
        finally:
            process.kill()


if __name__ == "__main__":
    raise SystemExit(main())
