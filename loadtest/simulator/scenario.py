"""A scenario file: which workload, on what fleet, with what a router knows of it. Knows TOML and the workloads by name;
runs nothing.

Every field is checked, an unknown one refused, and the nearest name told.
"""

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from loadtest.errors import UsageError
from loadtest.flags import nearest
from loadtest.simulator.knowledge import Knowledge
from loadtest.simulator.pairs import Pairs
from loadtest.simulator.profile import Profile, profile
from loadtest.simulator.sessions import Sessions, Users, check_kind
from loadtest.simulator.setup import Lora
from loadtest.simulator.workload import PLAIN_BLOCK_SIZE, Corpus, Half, Replay, Workload, Writer, corpus, replayed
from loadtest.trace import find_trace

_SHIPPED = Path(__file__).parent.parent / "scenarios"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a scenario file."""


class Adapters(_Table, frozen=True, kw_only=True):
    """LoRA adapters on every replica: so many `slots` on the device and `host_slots` in host memory; `bytes_per_rank`
    is the profile's model's. `count` adapters by Zipf's law; 0: the trace's tenants are adapters."""

    slots: int
    host_slots: int
    rank: int
    bytes_per_rank: int
    step_share: float
    count: int = 0


class Halves(_Table, frozen=True, kw_only=True):
    """So many replicas only compute prompts, so many only decode; the rest do both. KV goes from one to the other at
    `gigabytes_per_s` (of a replica's network; 25 is 200 Gbit/s), after `setup_ms` for each prompt."""

    prefill: int = 0
    decode: int = 0
    gigabytes_per_s: float = 25.0
    setup_ms: float = 20.0


class Scenario(_Table, frozen=True, kw_only=True):
    """`load`: where a search for capacity begins, and where a run is that is not told otherwise. One of `traces`,
    `corpus` and `sessions` is given; `begin_s`, `seconds`, `half`, `copies` and `prefixes_of` belong to traces, see
    `workload.Replay`."""

    about: str
    profile: str
    replicas: int
    load: float = 1.0
    load_unit: str = "x"
    traces: tuple[str, ...] = ()
    begin_s: float = 0.0
    seconds: float | None = None
    half: Half | None = None
    copies: int = 1
    prefixes_of: str | None = None
    corpus: Corpus | None = None
    sessions: Sessions | None = None
    adapters: Adapters | None = None
    block_size: int | None = None
    host_tokens: int = 0
    pairs: Halves = Halves()
    knowledge: Knowledge = Knowledge()

    @property
    def engine(self) -> Profile:
        return profile(self.profile)

    @property
    def files(self) -> tuple[str, ...]:
        """The traces that it reads."""
        return self.traces if self.prefixes_of is None else (*self.traces, self.prefixes_of)

    @property
    def lora(self) -> Lora | None:
        given = self.adapters
        if given is None:
            return None
        return Lora(given.slots, given.host_slots, given.rank * given.bytes_per_rank, given.step_share)

    @property
    def handing_over(self) -> Pairs | None:
        """None where every replica does both."""
        given = self.pairs
        if not given.prefill:
            return None
        num_bytes, bytes_per_s = self.engine.kv_bytes_per_token, given.gigabytes_per_s * 1e9
        return Pairs(given.prefill, given.decode, num_bytes, bytes_per_s, given.setup_ms / 1e3)

    def workload(self, seed: int) -> Workload | Users:
        """Written out, with the same random numbers for every policy."""
        if self.corpus is not None:
            return corpus(self.corpus, self.engine, seed, self.block_size)
        if self.sessions is not None:
            return Users(self.sessions, Writer(self.engine, self.block_size or PLAIN_BLOCK_SIZE), seed)
        replay = Replay(
            traces=self.traces,
            block_size=self.block_size,
            begin_s=self.begin_s,
            seconds=self.seconds,
            half=self.half,
            copies=self.copies,
            has_adapters=self.adapters is not None,
            num_adapters=self.adapters.count or None if self.adapters is not None else None,
            prefixes_of=self.prefixes_of,
        )
        return replayed(replay, self.engine, seed)


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
    """Raises UsageError naming the field that makes no sense, or the trace that is not there."""
    for field, is_wrong, what in _faults(scenario):
        if is_wrong:
            raise UsageError(f"{where}: {field} {what}")
    for name in scenario.files:
        find_trace(name)
    return scenario


def _faults(scenario: Scenario) -> Iterator[tuple[str, bool, str]]:
    yield "replicas", scenario.replicas < 1, "must be at least 1"
    yield "load", scenario.load <= 0, "must be above 0"
    num_sources = bool(scenario.traces) + (scenario.corpus is not None) + (scenario.sessions is not None)
    yield "traces", num_sources != 1, "or corpus or sessions: give exactly one of them"
    if not scenario.traces:
        for field in ("seconds", "half", "prefixes_of", "adapters"):
            yield field, getattr(scenario, field) is not None, "needs traces"
        yield "copies", scenario.copies != 1, "needs traces"
    yield "copies", scenario.copies < 1, "must be at least 1"
    yield "begin_s", scenario.begin_s < 0, "must not be negative"
    yield "begin_s", scenario.begin_s > 0 and not scenario.traces, "needs traces"
    yield "seconds", scenario.seconds is not None and scenario.seconds <= 0, "must be above 0"
    yield "host_tokens", scenario.host_tokens < 0, "must not be negative"
    size, most = scenario.block_size, scenario.engine.kv_capacity_tokens
    yield "block_size", size is not None and not 1 <= size <= most, "is out of range"
    yield (
        "corpus",
        scenario.corpus is not None and not _is_positive(msgspec.structs.astuple(scenario.corpus)),
        "needs numbers above 0",
    )
    if scenario.sessions is not None:
        check_kind(scenario.sessions.kind)
        longest = scenario.sessions.max_tokens
        yield "sessions.requests", scenario.sessions.requests < 1, "must be at least 1"
        yield "sessions.max_tokens", not 1 <= longest <= most, "is out of range"
    if scenario.adapters is not None:
        given = scenario.adapters
        sizes = (given.slots, given.host_slots, given.rank, given.bytes_per_rank)
        yield "adapters", not _is_positive(sizes) or given.count < 0 or given.step_share < 0, "needs numbers above 0"
    halves = scenario.pairs
    both = halves.prefill, halves.decode
    yield "pairs", min(both) < 0 or bool(halves.prefill) != bool(halves.decode), "needs replicas of either role"
    yield "pairs", sum(both) > scenario.replicas, f"needs {sum(both)} replicas, there are {scenario.replicas}"
    yield "pairs.gigabytes_per_s", not halves.gigabytes_per_s > 0, "must be above 0"
    yield "pairs.setup_ms", halves.setup_ms < 0, "must not be negative"
    known = scenario.knowledge
    yield "knowledge.routers", known.routers < 1, "must be at least 1"
    yield "knowledge.metrics_interval_ms", known.metrics_interval_ms < 0, "must not be negative"
    yield "knowledge.kv_event_delay_ms", known.kv_event_delay_ms < 0, "must not be negative"


def _is_positive(values: Iterable[float]) -> bool:
    return all(value > 0 for value in values)


def _find(name_or_path: str) -> Path:
    shipped = shipped_scenarios()
    begun = [path for name, path in shipped.items() if name == name_or_path or name.startswith(f"{name_or_path}_")]
    if len(begun) == 1:
        return begun[0]
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    hint = nearest(name_or_path, tuple(shipped)) or f"; shipped are {', '.join(shipped)}"
    raise UsageError(f"SCENARIO: {name_or_path!r} is neither a file nor a shipped scenario{hint}")
