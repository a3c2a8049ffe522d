"""A scenario file: which workload, on what fleet, with what a router knows of it. Knows TOML and the workloads by name;
runs nothing.

Every field is checked, an unknown one refused, and the nearest name told.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.errors import UsageError
from loadtest.flags import nearest
from loadtest.simulator.knowledge import Knowledge
from loadtest.simulator.profile import Profile, profile
from loadtest.simulator.workload import PLAIN_BLOCK_SIZE, Workload, corpus, replayed

_SHIPPED = Path(__file__).parent.parent / "scenarios"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a scenario file."""


class Corpus(_Table, frozen=True, kw_only=True):
    """Questions to prefixes, at a Poisson rate that is the load: requests a second. Lengths in tokens."""

    prefixes: int
    prefix_tokens: int
    questions: int
    question_tokens: int
    output_tokens: int
    requests: int


class Scenario(_Table, frozen=True, kw_only=True):
    """`loads`: where a search for capacity begins. One of `traces` and `corpus` is given."""

    about: str
    profile: str
    replicas: int
    loads: tuple[float, float] = (0.5, 2.0)
    load_unit: str = "x"
    traces: tuple[str, ...] = ()
    corpus: Corpus | None = None
    block_size: int | None = None
    host_tokens: int = 0
    knowledge: Knowledge = Knowledge()

    @property
    def engine(self) -> Profile:
        return profile(self.profile)

    def workload(self, seed: int) -> Workload:
        """Written out, with the same random numbers for every policy."""
        if self.corpus is not None:
            return _corpus(self.corpus, self.engine, seed, self.block_size)
        return replayed(self.traces, self.engine, seed, self.block_size)


def shipped_scenarios() -> dict[str, Path]:
    """Those that come with the package, by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.toml"))}


def load_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by name or its first letters (`w1`), or a file. Raises UsageError naming what is wrong."""
    path = _find(name_or_path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        scenario = msgspec.convert(content, Scenario)
    except OSError as error:
        raise UsageError(f"cannot read the scenario {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"the scenario {path} is wrong: {error}") from None
    return checked(scenario, str(path))


def checked(scenario: Scenario, where: str) -> Scenario:
    """Raises UsageError naming the field that makes no sense."""
    for field, is_wrong, what in _faults(scenario):
        if is_wrong:
            raise UsageError(f"{where}: {field} {what}")
    return scenario


def _faults(scenario: Scenario) -> Sequence[tuple[str, bool, str]]:
    low, high = scenario.loads
    num_sources = bool(scenario.traces) + (scenario.corpus is not None)
    engine = scenario.engine
    block_size = scenario.block_size
    return (
        ("replicas", scenario.replicas < 1, "must be at least 1"),
        ("loads", not 0 < low < high, "must be two numbers above 0, the lower first"),
        ("traces", num_sources != 1, "or corpus: give exactly one of them"),
        ("host_tokens", scenario.host_tokens < 0, "must not be negative"),
        ("knowledge.routers", scenario.knowledge.routers < 1, "must be at least 1"),
        ("knowledge.metrics_interval_ms", scenario.knowledge.metrics_interval_ms < 0, "must not be negative"),
        ("knowledge.kv_event_delay_ms", scenario.knowledge.kv_event_delay_ms < 0, "must not be negative"),
        ("block_size", block_size is not None and not 1 <= block_size <= engine.kv_capacity_tokens, "is out of range"),
        ("corpus", scenario.corpus is not None and not _is_positive(scenario.corpus), "needs numbers above 0"),
    )


def _is_positive(given: Corpus) -> bool:
    return all(value > 0 for value in msgspec.structs.astuple(given))


def _corpus(given: Corpus, engine: Profile, seed: int, block_size: int | None) -> Workload:
    return corpus(
        num_prefixes=given.prefixes,
        prefix_tokens=given.prefix_tokens,
        num_questions=given.questions,
        question_tokens=given.question_tokens,
        output_tokens=given.output_tokens,
        num_requests=given.requests,
        profile=engine,
        seed=seed,
        block_size=block_size or PLAIN_BLOCK_SIZE,
    )


def _find(name_or_path: str) -> Path:
    shipped = shipped_scenarios()
    begun = [path for name, path in shipped.items() if name == name_or_path or name.startswith(f"{name_or_path}_")]
    if len(begun) == 1:
        return begun[0]
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    hint = nearest(name_or_path, tuple(shipped)) or f"; shipped are {', '.join(shipped)}"
    raise UsageError(f"SCENARIO: {name_or_path!r} is neither a file nor a shipped scenario{hint}")
