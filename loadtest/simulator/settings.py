"""Settings of `pointsman-load sim`. Knows what a valid setting is; runs nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from loadtest.errors import UsageError
from loadtest.settings import About, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """`pointsman-load sim`."""

    scenario: Annotated[
        tuple[str, ...], About("shipped scenarios (w1, w2, ...) or TOML files", is_positional=True)
    ] = ()
    policy: Annotated[
        str,
        About("policies to compare, by name or recipe file, or all; others are compared with the first", metavar="A,B"),
    ] = "round-robin,least-request,pointsman"
    capacity: Annotated[bool, About("search the highest load with 90 % of requests within the objective")] = False
    calm: Annotated[bool, About("with --capacity: run at 70 % of it as well, for the hit ratio there")] = False
    load: Annotated[float | None, About("run at this load (default: the scenario's; 1 for a trace)", above=0)] = None
    seeds: Annotated[int, About("repeat with so many seeds; then 95 % intervals are shown", at_least=1)] = 1
    seed: Annotated[int, About("the first seed: jitter, arrivals, ties")] = 0
    trace: Annotated[str | None, About("a trace instead of a scenario: shipped, or a file", metavar="NAME|PATH")] = None
    profile: Annotated[str, About("the engine that the trace runs on")] = "llama3-70b-h100-tp4"
    half: Annotated[
        Literal["first", "second"] | None,
        About("only this half of the traces' requests: to check on one what was tuned on the other"),
    ] = None
    replicas: Annotated[int | None, About("fleet size (default: the scenario's; 8 for a trace)", at_least=1)] = None
    host_tokens: Annotated[
        int | None, About("tokens in each replica's host tier (default: as above; 0)", at_least=0)
    ] = None
    prefill: Annotated[int | None, About("so many of the replicas only compute prompts", at_least=0)] = None
    decode: Annotated[int | None, About("and so many only decode: KV goes from one to the other", at_least=0)] = None
    kv_gigabytes_per_s: Annotated[float | None, About("at so much (default: the scenario's; 25)", above=0)] = None
    routers: Annotated[int | None, About("routers that share the fleet (default: the scenario's; 1)", at_least=1)] = (
        None
    )
    metrics_interval_ms: Annotated[
        float | None, About("routers read metrics so often; 0: they always know (default: as above; 0)", at_least=0)
    ] = None
    kv_event_delay_ms: Annotated[float | None, About("KV events come so late (default: as above; 0)", at_least=0)] = (
        None
    )
    kv_events: Annotated[bool, About("replicas tell nothing of their caches")] = True
    fair_shares: Annotated[bool, About("routers serve in one order, whoever asks: what fair shares cost")] = True
    jobs: Annotated[int, About("processes that simulate", at_least=1)] = 1
    format: Annotated[Literal["table", "json", "markdown"], About("what is printed")] = "table"
    png: Annotated[Path | None, About("draw capacity, attainment and hit ratios to this file")] = None
    cache: Annotated[bool, About("simulate anew, and keep nothing")] = True
    quiet: Annotated[bool, About("no progress")] = False

    def policies(self) -> tuple[str, ...]:
        """In the order given, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.policy.split(",") if name.strip()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """`pointsman-load replica`."""

    profile: Annotated[str, About("the engine whose steps it takes as long as")] = "llama3-8b-h100-tp1"
    speed: Annotated[
        float, About("so many times faster than real; replay and objectives then shrink alike", above=0)
    ] = 1.0
    host: Annotated[str, About("address to listen on")] = "127.0.0.1"
    port: Annotated[int, About("port to listen on; 0 takes a free one", at_least=0, at_most=65535)] = 8000
    model: Annotated[str | None, About("model id to serve (default: the profile's name)")] = None
    kv_tokens: Annotated[int | None, About("tokens in the KV cache (default: the profile's)", at_least=16)] = None
    host_tokens: Annotated[int, About("tokens in the host tier", at_least=0)] = 0
    adapter_slots: Annotated[int, About("adapters that compute at a time", at_least=0)] = 0
    kv_events: Annotated[
        str | None, About("tell of the cache there, as vLLM does: tcp://*:5557 or ipc://PATH", metavar="ADDRESS")
    ] = None
    kv_replay: Annotated[str | None, About("and again on demand there", metavar="ADDRESS")] = None


def check_replica(settings: ReplicaSettings) -> None:
    """Raise UsageError for a value out of range or an address that is none."""
    check_numbers(settings)
    if settings.kv_replay is not None and settings.kv_events is None:
        raise UsageError("--kv-replay: needs --kv-events")
    if settings.kv_events is not None and not ("*" in settings.kv_events or settings.kv_events.startswith("ipc://")):
        raise UsageError(f"--kv-events: {settings.kv_events!r} is no address to listen on: tcp://*:PORT or ipc://PATH")


def check_sim(settings: SimSettings) -> None:
    """Raise UsageError for a value out of range or for flags that contradict each other."""
    check_numbers(settings)
    if not settings.policies():
        raise UsageError("--policy: names no policy")
    if bool(settings.scenario) == (settings.trace is not None):
        raise UsageError("SCENARIO or --trace: give exactly one of them")
    if settings.capacity and settings.load is not None:
        raise UsageError("--load: contradicts --capacity, which searches it")
    if settings.calm and not settings.capacity:
        raise UsageError("--calm: needs --capacity")
    if settings.capacity and settings.seeds > 1:
        raise UsageError("--seeds: repeats runs at one --load; --capacity searches with one seed")
