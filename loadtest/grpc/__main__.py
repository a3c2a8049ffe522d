"""`python -m loadtest.grpc messages|latency`: what gRPC costs the router.

`messages`: CPU microseconds a message, and messages a second, of the gRPC port against a bare grpc.aio proxy in the
same run. `latency`: how old SSE events are when they reach their client, while gRPC calls run in the same process, and
while they run in a process of their own on the same core. Exit codes: 0; 1 where it failed; 2 for wrong usage.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import uvloop

from loadtest.errors import LoadError
from loadtest.grpc.client import Heard, by_grpc, by_sse
from loadtest.grpc.rig import Rig, open_rig
from loadtest.peers.accounting import cpu_s
from loadtest.peers.process import Running

_WARM_EVENTS = 30

Load = Callable[[int], Awaitable[Heard]]


@dataclass(eq=False, slots=True)
class Case:
    """One thing under load; `load(num_events)` asks it."""

    name: str
    process: Running
    load: Load
    cpu_us: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def measure(self, num_events: int) -> None:
        """One round more. Raises LoadError."""
        _run(self.load, _WARM_EVENTS)
        before, began = cpu_s(self.process.pid), time.monotonic()
        heard = _run(self.load, num_events)
        self.cpu_us.append((cpu_s(self.process.pid) - before) * 1e6 / heard.num_events)
        self.rates.append(heard.num_events / (time.monotonic() - began))


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(argv)
    try:
        with open_rig() as rig:
            (_messages if flags.what == "messages" else _latency)(rig, flags)
    except LoadError as error:
        print(f"loadtest.grpc: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.grpc", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["messages", "latency"])
    parser.add_argument("--streams", type=int, default=16, metavar="N", help="calls at once; default 16")
    parser.add_argument("--events", type=int, default=300, metavar="N", help="of each call; default 300")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of all cases in turn; default 3")
    parser.add_argument("--interval-ms", type=float, default=10.0, metavar="MS", help="between events; default 10")
    return parser


def _messages(rig: Rig, flags: argparse.Namespace) -> None:
    for interval_ms, what in ((flags.interval_ms, f"an event each {flags.interval_ms:g} ms"), (0.0, "at full speed")):
        rig.open_source(interval_ms)
        cases = _cases(rig, flags.streams)
        for _ in range(flags.rounds):
            for case in cases:
                case.measure(flags.events)
        print(f"{flags.streams} calls, {what}: CPU us a message (times the bare proxy's), messages a second")
        base = median(cases[0].cpu_us)
        for case in cases:
            cpu_us = median(case.cpu_us)
            print(f"  {case.name:34} {cpu_us:7.1f} ({cpu_us / base:.2f}) {median(case.rates):9.0f}")


def _cases(rig: Rig, num_streams: int) -> list[Case]:
    bare, port = rig.open_bare()
    over_http, over_grpc = rig.open_router(upstream="http"), rig.open_router(upstream="grpc")
    return [
        Case("bare grpc.aio proxy", bare, lambda n: by_grpc(port, num_streams, n)),
        Case("gRPC in, replica over HTTP", over_http.process, lambda n: by_grpc(over_http.grpc_port, num_streams, n)),
        Case("gRPC in, replica over gRPC", over_grpc.process, lambda n: by_grpc(over_grpc.grpc_port, num_streams, n)),
        Case("SSE in, replica over HTTP", over_http.process, lambda n: by_sse(over_http.http_port, num_streams, n)),
        Case("SSE in, replica over gRPC", over_grpc.process, lambda n: by_sse(over_grpc.http_port, num_streams, n)),
    ]


def _latency(rig: Rig, flags: argparse.Namespace) -> None:
    rig.open_source(flags.interval_ms)
    one, other = rig.open_router(upstream="http"), rig.open_router(upstream="http")
    ports = {"no gRPC": None, "gRPC in the same process": one.grpc_port, "gRPC in another": other.grpc_port}
    ages: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
    for _ in range(flags.rounds):
        for name, grpc_port in ports.items():
            heard = _run(partial(_beside, one.http_port, grpc_port, flags.streams), flags.events)
            ages[name].append((heard.age_ms(0.5), heard.age_ms(0.99)))
    print(f"{flags.streams} SSE streams beside {flags.streams} calls, an event each {flags.interval_ms:g} ms:")
    print("age of an SSE event at its client, ms (median of the rounds): p50, p99")
    for name, found in ages.items():
        print(f"  {name:34} {median(p50 for p50, _ in found):7.2f} {median(p99 for _, p99 in found):7.2f}")


async def _beside(http_port: int, grpc_port: int | None, num_streams: int, num_events: int) -> Heard:
    """What the SSE streams heard."""
    if grpc_port is None:
        return await by_sse(http_port, num_streams, num_events)
    heard, _ = await asyncio.gather(
        by_sse(http_port, num_streams, num_events), by_grpc(grpc_port, num_streams, num_events)
    )
    return heard


def _run(load: Load, num_events: int) -> Heard:
    async def run() -> Heard:
        return await load(num_events)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        heard = runner.run(run())
    if not heard.num_events:
        raise LoadError("no event came")
    return heard


if __name__ == "__main__":
    sys.exit(main())
