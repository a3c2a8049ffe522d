"""`python -m loadtest.admission NAME`: measures the queue. Knows the names, and how figures are printed.

depth (cost and bytes of a long line), shared (the same in Redis), fit (a request that fits), grants (a full pool, by
one router and one Redis), isolation and overload (in virtual time), tenants (what fair shares cost, simulated), order
(several router processes), chaos (Redis comes and goes).
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import uvloop

from loadtest.admission import chaos, company, depth, live, shared, tenants, virtual
from loadtest.errors import LoadError
from loadtest.simulator.report import interval
from router.admission.bands import BandTerms
from router.core import Band


def main(words: Sequence[str] | None = None) -> int:
    """Print the figures of one name; return the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    if given[:1] == ["child"]:
        url, log, number, num_routers, duration_s = given[1:]
        uvloop.run(company.run_child(url, Path(log), int(number), int(num_routers), float(duration_s)))
        return 0
    parser = argparse.ArgumentParser(prog="python -m loadtest.admission", description="Measures the router's queue.")
    parser.add_argument("name", choices=list(_NAMES))
    parser.add_argument("--seconds", type=float, default=30.0, help="of order and chaos; default 30")
    parser.add_argument("--routers", type=int, default=8, help="processes of order; default 8")
    parser.add_argument("--seeds", type=int, default=5, help="of isolation; default 5")
    parser.add_argument("--seed", type=int, default=0, help="of tenants; default 0")
    parser.add_argument(
        "--begin", type=float, nargs="+", default=_BEGINS_S, help="where tenants begins in the trace, s"
    )
    parser.add_argument("--requests", type=int, default=30_000, help="of grants; default 30000")
    flags = parser.parse_args(given)
    try:
        _NAMES[flags.name](flags)
    except LoadError as error:
        print(f"loadtest.admission: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _depth(_: argparse.Namespace) -> None:
    costs = [depth.measure(each) for each in depth.DEPTHS]
    for cost in costs:
        print(
            f"{cost.depth:>9,} waiting: push {cost.push_us:.2f} us, grant {cost.grant_us:.2f} us, "
            f"{cost.entry_bytes:.0f} bytes each"
        )
    first, last = costs[0], costs[-1]
    print(f"ratios: push {last.push_us / first.push_us:.2f}, grant {last.grant_us / first.grant_us:.2f}")


def _shared(_: argparse.Namespace) -> None:
    for cost in uvloop.run(shared.measure()):
        print(cost)


def _fit(_: argparse.Namespace) -> None:
    found = uvloop.run(live.measure_fit())
    print(f"a request that fits: {found.place_us:.1f} us of CPU, {found.commands_per_request:.4f} Redis commands")


def _grants(flags: argparse.Namespace) -> None:
    found = uvloop.run(live.measure_grants(flags.requests))
    print(
        f"contended: {found.per_s:,.0f} grants a second in {found.num_turns} turns; a grant takes "
        f"{found.router_us:.0f} us of the router's CPU and {found.redis_us:.0f} us of Redis'"
    )


def _isolation(flags: argparse.Namespace) -> None:
    ratios = []
    for seed in range(flags.seeds):
        runs = virtual.isolation(seed=seed)
        for name, run in zip(("at its share", "at 100 times"), runs, strict=True):
            quiet, other = run.tallies["quiet"], run.tallies["other"]
            print(
                f"seed {seed}, the other tenant {name}: p95 wait of the quiet one {quiet.p95_s:.2f} s "
                f"({quiet.num_done} done, {quiet.num_refused} refused), of the other {other.p95_s:.2f} s "
                f"({other.num_refused} refused)"
            )
        ratios.append(runs[1].tallies["quiet"].p95_s / runs[0].tallies["quiet"].p95_s)
    print(f"ratio of the quiet one's p95: {_with_interval(ratios, '.2f')}")


def _tenants(flags: argparse.Namespace) -> None:
    costs = []
    for begin_s in flags.begin:
        found = tenants.measure(begin_s, flags.seed)
        costs.append(found.cost)
        print(
            f"from {begin_s:.0f} s: capacity {found.one_order:.1f} in one order, {found.fair:.1f} with fair shares "
            f"({found.cost:.1%} less); at {tenants.OVERLOAD} times that tenants who both wait get apart by "
            f"{found.gaps[0].tokens:,} tokens in one order, {found.gaps[1].tokens:,} with fair shares (bound "
            f"{found.gaps[1].bound:,}), light tenants' first tokens p99 "
            f"{found.light_p99_ms[0]:,.0f} and {found.light_p99_ms[1]:,.0f} ms",
            flush=True,
        )
    print(f"fair shares cost of capacity: {_with_interval(costs, '.1%')}")


def _with_interval(values: Sequence[float], form: str) -> str:
    """The mean and, of several, half of its 95 % interval."""
    found = interval(values)
    return f"{found.mean:{form}}" + (f" ±{found.half:{form}}" if found.half is not None else "")


def _overload(_: argparse.Namespace) -> None:
    runs = virtual.overload()
    rates = []
    for name, run in zip(("full", "tenfold"), runs, strict=True):
        tally = run.tallies["all"]
        rates.append(tally.num_done / run.duration_s)
        told = f"{min(tally.told_s, default=0.0):.0f} to {max(tally.told_s, default=0.0):.0f} s"
        print(
            f"{name}: {rates[-1]:.2f} answers in time a second, longest wait {max(tally.waits_s):.1f} s, "
            f"{run.most_waiting} waiting at most, {tally.num_refused} refused with Retry-After of {told}, "
            f"{tally.num_untold} of them without a true one"
        )
    print(f"goodput ratio: {rates[1] / rates[0]:.3f}")


def _order(flags: argparse.Namespace) -> None:
    found = uvloop.run(company.measure(flags.routers, flags.seconds))
    print(
        f"{flags.routers} processes, {found.num_started} starts ({found.num_alone} without Redis), "
        f"{found.num_waited_long} of them after more than {company.TOLERANCE_S * 1e3:.0f} ms: {found.num_violations} "
        f"started while one that had been queued so long before still waited (worst by {found.worst_s * 1e3:.0f} ms); "
        f"bulk got {found.bulk_share:.1%} of the starts, {BandTerms().min_shares[Band.BULK]:.0%} is its least share"
    )


def _chaos(flags: argparse.Namespace) -> None:
    found = uvloop.run(chaos.measure(flags.seconds))
    waits_s = sorted(found.waits_s)
    print(
        f"{found.num_blows} blows, the store lost {found.num_losses} times by {chaos.NUM_ROUTERS} routers: "
        f"{found.num_answered} answered, {found.num_refused} refused, {found.num_unanswered} without an answer; "
        f"longest stall {found.longest_stall_s * 1e3:.0f} ms, "
        f"p99 wait {waits_s[len(waits_s) * 99 // 100] * 1e3:.0f} ms, "
        f"at most {found.most_open} open of {chaos.CAPACITY}, {found.left_over} left over"
    )


# The hour of the trace in six parts.
_BEGINS_S = (0.0, 600.0, 1200.0, 1800.0, 2400.0, 3000.0)
_NAMES: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "depth": _depth,
    "shared": _shared,
    "fit": _fit,
    "grants": _grants,
    "isolation": _isolation,
    "overload": _overload,
    "tenants": _tenants,
    "order": _order,
    "chaos": _chaos,
}

if __name__ == "__main__":
    sys.exit(main())
