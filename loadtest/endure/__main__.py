"""`python -m loadtest.endure memory|idle|sockets|soak|workers`: what our router needs under many, for long.

Knows flags and what is printed. Exit codes: 0; 1 where it failed, or made errors; 2 for wrong usage.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

import uvloop

from loadtest.endure.idle import measure_idle
from loadtest.endure.memory import measure_memory
from loadtest.endure.processes import measure_processes, speedup, speedup_evenly
from loadtest.endure.soak import measure_soak
from loadtest.endure.sockets import measure_sockets
from loadtest.errors import LoadError


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(argv)
    try:
        commands = {"memory": _memory, "idle": _idle, "sockets": _sockets, "soak": _soak, "workers": _processes}
        return commands[flags.what](flags)
    except LoadError as error:
        print(f"loadtest.endure: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.endure", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("memory", help="memory of a router that is ready, without and with a tokenizer")
    idle = commands.add_parser("idle", help="memory of open idle streams")
    idle.add_argument("--streams", type=_positive, default=8000, metavar="N", help="default 8000")
    sockets = commands.add_parser("sockets", help="memory of open WebSockets, idle and with a conversation")
    sockets.add_argument("--sockets", type=_positive, default=4000, metavar="N", help="default 4000")
    soak = commands.add_parser("soak", help="memory under mixed load with clients that leave")
    soak.add_argument("--seconds", type=_positive, default=600, metavar="N", help="default 600")
    soak.add_argument("--clients", type=_positive, default=64, metavar="N", help="default 64")
    soak.add_argument("--rate", type=_positive, default=300, metavar="N", help="requests a second; default 300")
    workers = commands.add_parser("workers", help="several workers against one, by the CPU time of the busiest")
    workers.add_argument("--workers", type=_positive, default=2, metavar="N", help="default 2")
    workers.add_argument("--bodies", choices=["500b", "8k", "64k"], default="500b", help="default 500b")
    workers.add_argument("--seconds", type=_positive, default=2, metavar="N", help="of a round; default 2")
    workers.add_argument("--rounds", type=_positive, default=5, metavar="N", help="default 5")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _memory(_: argparse.Namespace) -> int:
    for has_tokenizer in (False, True):
        found = measure_memory(has_tokenizer=has_tokenizer)
        print(
            f"{'with' if has_tokenizer else 'without'} a tokenizer: {found.router_mb:.0f} MB, "
            f"{found.tree_mb:.0f} with its Redis"
        )
    return 0


def _idle(flags: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        idle = runner.run(measure_idle(flags.streams))
    print(f"{idle.num_streams} idle streams: {idle.kb_each:.1f} KB each")
    print(f"router: {idle.before_mb:.0f} MB before, {idle.open_mb:.0f} with them, {idle.after_mb:.0f} after they left")
    print(f"still counted as in flight: {idle.num_left}")
    return int(idle.num_left > 0)


def _sockets(flags: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure_sockets(flags.sockets))
    print(
        f"{found.num_sockets} WebSockets: {found.kb_each:.1f} KB each, "
        f"{found.kb_each_talked:.1f} KB with a conversation of one turn"
    )
    print(
        f"router: {found.before_mb:.0f} MB before, {found.open_mb:.0f} with them open, {found.talked_mb:.0f} with "
        f"their conversations, {found.after_mb:.0f} after they left"
    )
    print(f"descriptors still open: {found.num_left}")
    return int(found.num_left > 0)


def _soak(flags: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        soak = runner.run(measure_soak(flags.seconds, flags.clients, flags.rate))
    step = max(1, len(soak.looks) // 12)
    print("resident MB: " + ", ".join(f"{mb:.1f} at {at:.0f} s" for at, mb in soak.looks[::step]))
    print(f"slope of the second half: {soak.mb_per_hour:+.1f} MB an hour")
    refused = "".join(f", {number} refused with {status}" for status, number in sorted(soak.refused.items()))
    print(f"{soak.num_ended} answered, {soak.num_left} left by their clients, {soak.num_cut} cut{refused}")
    print(f"still counted as in flight: {soak.num_in_flight}")
    return int(soak.num_cut > 0 or bool(soak.refused) or soak.num_in_flight > 0)


def _processes(flags: argparse.Namespace) -> int:
    one, more = measure_processes((1, flags.workers), flags.bodies, flags.seconds, flags.rounds)
    for each in (one, more):
        print(
            f"{each.num_workers} workers: {each.cpu_us_all:.1f} µs of CPU a request, "
            f"{each.cpu_us_busiest:.1f} of them in the busiest process ({each.num_answers:.0f} answers a round, "
            f"{each.num_errors:.0f} errors)"
        )
    print(
        f"{more.num_workers} workers serve {speedup(one, more):.2f} times as many as one, by CPU time; "
        f"{speedup_evenly(one, more):.2f} times were connections spread evenly"
    )
    return int(one.num_errors + more.num_errors > 0)


if __name__ == "__main__":
    sys.exit(main())
