"""Flags from settings: each field is one flag. Knows argparse; knows nothing of what a setting causes."""

import argparse
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from loadtest.errors import UsageError
from loadtest.peers.settings import PeersSettings, check_peers
from loadtest.settings import CancelSettings, RunSettings, about, check_cancel, check_run, flag_name
from loadtest.simulator.settings import ReplicaSettings, SimSettings, check_replica, check_sim

_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
_WANTED = {int: "a whole number", float: "a number", str: "text", Path: "a file"}


def parse(argv: Sequence[str]) -> RunSettings | CancelSettings | PeersSettings | SimSettings | ReplicaSettings:
    """The checked settings of the chosen command. Raises UsageError; --help exits as argparse does."""
    namespace, leftovers = _parser().parse_known_args(argv)
    if leftovers:
        raise UsageError(_unknown(leftovers, namespace.settings))
    given = {name: _frozen(value) for name, value in vars(namespace).items() if name not in ("command", "settings")}
    if namespace.settings is RunSettings:
        run = RunSettings(**given)
        check_run(run, given.keys())
        return run
    if namespace.settings is PeersSettings:
        peers = PeersSettings(**given)
        check_peers(peers)
        return peers
    if namespace.settings is SimSettings:
        sim = SimSettings(**given)
        check_sim(sim)
        return sim
    if namespace.settings is ReplicaSettings:
        replica = ReplicaSettings(**given)
        check_replica(replica)
        return replica
    cancel = CancelSettings(**given)
    check_cancel(cancel)
    return cancel


def nearest(name: str, known: Sequence[str]) -> str:
    """`; did you mean x?` or nothing."""
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else ""


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one sentence that names the flag."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pointsman-load", description="Load for OpenAI-compatible servers.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    run = commands.add_parser(
        "run",
        help="send requests, measure TTFT, ITL, throughput and errors",
        description="Send requests at a rate (open loop), at a concurrency (closed loop) or as a trace says.",
        allow_abbrev=False,
    )
    cancel = commands.add_parser(
        "cancel",
        help="close connections early, measure how soon the engines are idle again",
        description="Close connections before the first token and in mid-stream; measure how soon no request runs.",
        allow_abbrev=False,
    )
    peers = commands.add_parser(
        "peers",
        help="compare our router with others: CPU time a request and an event, on one core",
        description="Run our router and others in turn on one core, beside fast replicas, and compare their CPU time.",
        allow_abbrev=False,
    )
    sim = commands.add_parser(
        "sim",
        help="simulate a fleet behind our own decision: capacity, latencies and cache hits by policy",
        description="Simulate policies on scenarios or a trace, on a virtual clock, with our own engine and router.",
        allow_abbrev=False,
    )
    replica = commands.add_parser(
        "replica",
        help="serve as an engine that only waits as long as a real one would compute",
        description="The bundled engine's server and scheduler around a runner that waits, by a profile of step times.",
        allow_abbrev=False,
    )
    everything = (
        (run, RunSettings),
        (cancel, CancelSettings),
        (peers, PeersSettings),
        (sim, SimSettings),
        (replica, ReplicaSettings),
    )
    for command, settings in everything:
        command.set_defaults(settings=settings)
        _add_flags(command, settings)
    return parser


def _add_flags(parser: argparse.ArgumentParser, settings: type[Any]) -> None:
    for name, hint, default, told in about(settings):
        if told.is_positional:
            parser.add_argument(name, nargs="*", metavar=name.upper(), default=argparse.SUPPRESS, help=told.text)
            continue
        parser.add_argument(
            _flag(name, hint, default),
            dest=name,
            default=argparse.SUPPRESS,  # what is absent was not given: contradictions are judged by that
            help=_help(told.text, default),
            **_kind(hint, default, told.metavar),
        )


def _flag(name: str, hint: Any, default: Any) -> str:
    return flag_name(f"no_{name}" if hint is bool and default else name)


def _help(text: str, default: Any) -> str:
    text = text.replace("%", "%%")
    shown = f"{default:g}" if isinstance(default, float) else default
    has_default = default is not None and default != () and not isinstance(default, bool)
    return f"{text} (default: {shown})" if has_default else text


def _kind(hint: Any, default: Any, metavar: str | None) -> dict[str, Any]:
    """The argparse options of a field's type."""
    if type(None) in get_args(hint):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if hint is bool:
        return {"action": "store_false" if default else "store_true"}
    if get_origin(hint) is Literal:
        return {"type": _choice(get_args(hint)), "metavar": "|".join(get_args(hint))}
    if get_origin(hint) is tuple:
        return {"action": "append", "metavar": "URL"}
    return {"type": _converter(hint), "metavar": metavar or _METAVARS[hint]}


def _converter(plain: type) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = plain(text)
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {_WANTED[plain]}") from None
        return value

    return convert


def _choice(names: tuple[str, ...]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}{nearest(text, names)}")
        return text

    return convert


def _unknown(leftovers: list[str], settings: type[Any]) -> str:
    known = [_flag(name, hint, default) for name, hint, default, _ in about(settings)]
    strange = next((word for word in leftovers if word.startswith("-")), None)
    if strange is None:
        return f"{leftovers[0]!r}: every value belongs to a flag, this one has none"
    name = strange.partition("=")[0]
    return f"{name}: no such flag{nearest(name, known)}"
