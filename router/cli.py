"""The `pointsman` command: its subcommands and their flags. Knows words on a terminal; the work is done elsewhere."""

import argparse
import asyncio
import contextlib
import difflib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, NoReturn

import uvloop

from router import admin, batchcommands, chat, child, config, keycommands, policies, up
from router.admission.keyring import Keyring
from router.admission.opening import open_keyring, state_folder
from router.app import Router
from router.commons import EMBEDDED, NONE
from router.company import open_front
from router.config import ConfigError, Settings
from router.plugins import PluginError
from router.store.connection import CONNECT_TIMEOUT_S, Store
from router.store.errors import StoreAway
from router.telemetry.logs import open_log

DATA_URL = "http://127.0.0.1:30000"
ADMIN_URL = "http://127.0.0.1:30002"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; the exit status is 0, 1 for a failure, or 2 for wrong usage."""
    # `up` starts engines from a process that may speak gRPC: it would meddle with that, and say so in their logs.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a port that closes is no news
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["engine"]:
        _exec_engine(words[1:])
    try:
        if len(words) == 2 and words[0] in _CHILDREN:
            sys.exit(_CHILDREN[words[0]](int(words[1])))
        sys.exit(_run(words))
    except ConfigError as error:
        sys.exit(f"pointsman: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _run(words: Sequence[str]) -> int:
    flags, unknown = _parser().parse_known_args(words)
    if unknown:
        flags.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    command: Callable[[argparse.Namespace], int] = flags.command
    return command(flags)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pointsman", description="Routes requests to LLM engine replicas.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"pointsman {version('pointsman')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, (add, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(parser=command)  # it knows best what was meant by a wrong flag
        add(command)
    engine = commands.add_parser("engine", help="run one replica of the bundled engine: `pointsman engine --help`")
    engine.set_defaults(parser=engine, command=lambda _: _exec_engine(()))
    return parser


def _add_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=2, metavar="N", help="engine replicas to start (default 2)")
    parser.add_argument("--model", default=up.DEFAULT_MODEL, help=f"name or path (default {up.DEFAULT_MODEL})")
    config.add_flags(parser, without=("replica",))
    quiet = {"log_level": "warning"}  # the screen is for people
    parser.set_defaults(command=lambda flags: up.up(_settings(flags, quiet), flags.replicas, flags.model))


def _add_serve(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser)
    parser.set_defaults(command=lambda flags: _serve(_settings(flags)))


def _add_check(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser)
    parser.set_defaults(command=lambda flags: _check(_settings(flags)))


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", nargs="?", help="a policy's name or a recipe's file: check it, and print it as TOML")
    parser.set_defaults(command=_policies)


def _policies(flags: argparse.Namespace) -> int:
    try:
        return policies.show_policies(flags.policy)
    except PluginError as error:
        sys.exit(f"pointsman: {error}")


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--admin-url", default=ADMIN_URL, help=f"the router's admin port (default {ADMIN_URL})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(command=lambda flags: asyncio.run(admin.show_replicas(flags.admin_url, as_json=flags.json)))


def _add_adapters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--admin-url", default=ADMIN_URL, help=f"the router's admin port (default {ADMIN_URL})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(command=lambda flags: asyncio.run(admin.show_adapters(flags.admin_url, as_json=flags.json)))


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("replica", help="its id, as `pointsman replicas` shows it")
    parser.add_argument("--undo", action="store_true", help="let it serve again")
    parser.add_argument("--admin-url", default=ADMIN_URL, help=f"the router's admin port (default {ADMIN_URL})")
    parser.set_defaults(command=lambda flags: asyncio.run(admin.drain(flags.admin_url, flags.replica, undo=flags.undo)))


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("message", help="what a client would say")
    parser.add_argument("--model", help="model id (default: the first that a replica serves)")
    parser.add_argument("--admin-url", default=ADMIN_URL, help=f"the router's admin port (default {ADMIN_URL})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(command=_explain)


def _explain(flags: argparse.Namespace) -> int:
    return asyncio.run(admin.explain(flags.admin_url, flags.message, flags.model, as_json=flags.json))


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("message", nargs="?", help="what to say; without it, a conversation line by line")
    parser.add_argument("--url", default=DATA_URL, help=f"the router's data port (default {DATA_URL})")
    parser.add_argument("--model", help="model id (default: the first that the router serves)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="longest answer (default 256)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default 0)")
    parser.add_argument("--why", action="store_true", help="print which replica answered, and why, to standard error")
    parser.set_defaults(command=lambda flags: asyncio.run(chat.chat(_chat_options(flags), flags.message)))


def _add_batch(parser: argparse.ArgumentParser) -> None:
    batchcommands.add_batch(parser, DATA_URL)


def _add_webhooks(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)

    def add(name: str, text: str, run: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]) -> _Parser:
        action: _Parser = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("--admin-url", default=ADMIN_URL, help=f"the router's admin port (default {ADMIN_URL})")
        action.set_defaults(parser=action, command=lambda flags: asyncio.run(run(flags)))
        return action

    listing = add("list", "show those that were given up", _show_webhooks)
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    replay = add("replay", "send them anew", lambda flags: admin.replay_webhooks(flags.admin_url, flags.id))
    replay.add_argument("id", nargs="*", help="of jobs, as `list` shows them (default: all there)")
    secrets = add("secrets", "show which secrets sign, and make new ones", _show_secrets)
    secrets.add_argument("--rotate", action="store_true", help="make a new one; it is printed once")
    secrets.add_argument(
        "--overlap-hours", type=float, default=24.0, metavar="N", help="older ones sign for so long (default 24)"
    )


async def _show_webhooks(flags: argparse.Namespace) -> int:
    return await admin.show_webhooks(flags.admin_url, as_json=flags.json)


async def _show_secrets(flags: argparse.Namespace) -> int:
    return await admin.show_secrets(flags.admin_url, rotates=flags.rotate, overlap_s=flags.overlap_hours * 3600.0)


def _add_keys(parser: argparse.ArgumentParser) -> None:
    keycommands.add_keys(parser, _keyring)


def _add_tenants(parser: argparse.ArgumentParser) -> None:
    keycommands.add_tenants(parser, _keyring)


_COMMANDS: Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "up": (_add_up, "fetch a small model, start engine replicas and the router, and say how to talk to them"),
    "serve": (_add_serve, "run the router in front of replicas that are there"),
    "check": (_add_check, "check the settings, and print them all as TOML"),
    "policies": (_add_policies, "show the routing policies there are, and the parts that recipes are made of"),
    "replicas": (_add_replicas, "show the replicas of a running router"),
    "adapters": (_add_adapters, "show where each adapter stands on the replicas of a running router"),
    "explain": (_add_explain, "say where a message would be sent now, and why"),
    "drain": (_add_drain, "send a replica nothing new"),
    "keys": (_add_keys, "create, list, change and revoke API keys"),
    "tenants": (_add_tenants, "shares and limits that hold for all keys of a tenant"),
    "chat": (_add_chat, "talk to a model through the router"),
    "webhooks": (_add_webhooks, "list and replay webhooks that were given up; their secrets"),
    "batch": (_add_batch, "run a file of requests, and fetch what came of it"),
}


# Started by the supervisor, with a descriptor of their orders: not for people.
_CHILDREN: Mapping[str, Callable[[int], int]] = {"worker": child.run_router, "feed": child.run_feed}


def _settings(flags: argparse.Namespace, defaults: Mapping[str, object] = MappingProxyType({})) -> Settings:
    return config.load(config.given(vars(flags)), os.environ, flags.config, defaults)


@contextlib.asynccontextmanager
async def _keyring(flags: argparse.Namespace) -> AsyncIterator[Keyring]:
    """Raises ConfigError."""
    settings = _settings(flags)
    shared = None if settings.redis in (EMBEDDED, NONE) else Store(settings.redis)
    async with contextlib.nullcontext() if shared is None else shared.opened():
        if shared is not None:
            try:
                await shared.wait_up(CONNECT_TIMEOUT_S)
            except (StoreAway, TimeoutError) as error:
                raise ConfigError(f"The setting `redis` names a store that cannot be used: {error}") from None
        yield open_keyring(settings, state_folder(settings, os.environ), shared)


def _chat_options(flags: argparse.Namespace) -> chat.ChatOptions:
    return chat.ChatOptions(flags.url.rstrip("/"), flags.model, flags.max_tokens, flags.temperature, flags.why)


def _serve(settings: Settings) -> int:
    if not settings.replica:
        raise ConfigError("There is no replica to serve; name one with --replica http://HOST:PORT.")
    uvloop.run(_serve_until_stopped(settings))
    return 0


async def _serve_until_stopped(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    logger = open_log(settings.log_level)
    front = open_front(settings, logger)
    if front.restart is not None:
        loop.add_signal_handler(signal.SIGHUP, front.restart)
    fields = {"data_port": f"{settings.host}:{settings.port}", "replicas": len(settings.replica)}

    def tell() -> None:
        logger.info("serving", extra={"fields": fields | {"workers": settings.workers}})

    await front.run(stop, tell)


def _check(settings: Settings) -> int:
    Router(settings, open_log("error"))
    print(config.reference(settings), end="")
    return 0


def _exec_engine(arguments: Sequence[str]) -> NoReturn:
    """The two streets meet only here: as processes."""
    os.execv(sys.executable, [sys.executable, "-m", "engine", *arguments])


class _Parser(argparse.ArgumentParser):
    """Suggests the nearest flag or command."""

    def error(self, message: str) -> NoReturn:
        wrong, known = _wrong_word(message), _known_words(self)
        close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5) if wrong else []
        hint = f"; did you mean {close[0]}?" if close else ""
        self.exit(2, f"{self.prog}: {message}{hint}\n")


def _wrong_word(message: str) -> str | None:
    words = message.replace("'", " ").replace("=", " ").split()
    if message.startswith("unrecognized arguments:"):
        return words[2]
    return words[words.index("choice:") + 1] if "choice:" in words else None


def _known_words(parser: argparse.ArgumentParser) -> list[str]:
    words = [flag for action in parser._actions for flag in action.option_strings]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += [word for name, sub in action.choices.items() for word in (name, *_known_words(sub))]
    return words
