"""`pointsman keys` and `pointsman tenants`: work on the book itself, whether or not a router runs. A running router
heeds a change within a second. Knows flags and tables; what a key is, is the admission room's.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from router.admission import records
from router.admission.keyring import Keyring
from router.admission.records import CLASSES, ROLES, Book, Key, Tenant
from router.errors import PointsmanError

LIMITS = {
    "requests-per-minute": "N",
    "tokens-per-minute": "N",
    "concurrent-requests": "N",
    "tokens-per-day": "N",
    "tokens-per-month": "N",
}


Flags = argparse.Namespace
Parser = argparse.ArgumentParser
OpenKeyring = Callable[[Flags], AbstractAsyncContextManager[Keyring]]


def add_keys(parser: Parser, opened: OpenKeyring) -> None:
    """The actions of `pointsman keys`."""
    act = _Actions(parser, opened)
    act.add("create", "make a key; its token is printed once", [_add_key_flags], _create)
    act.add("list", "show all keys", [_add_json], _show_keys)
    act.add("change", "change what is given", [_add_id, _add_key_flags], _change)
    act.add("revoke", "end a key for good", [_add_id], _revoke)


def add_tenants(parser: Parser, opened: OpenKeyring) -> None:
    """The actions of `pointsman tenants`."""
    act = _Actions(parser, opened)
    act.add("set", "create a tenant, or change what is given", [_add_id, _add_tenant_flags], _set_tenant)
    act.add("list", "show all tenants", [_add_json], _show_tenants)
    act.add("remove", "take weight and limits away; its keys stay", [_add_id], _remove_tenant)


class _Actions:
    """Subcommands that work on a keyring."""

    def __init__(self, parser: Parser, opened: OpenKeyring) -> None:
        self._commands = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
        self._opened = opened

    def add(
        self,
        name: str,
        text: str,
        flags: Sequence[Callable[[Parser], None]],
        run: Callable[[Keyring, Flags], Coroutine[Any, Any, int]],
    ) -> None:
        action = self._commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("--config", metavar="FILE", help="the router's settings")
        action.add_argument("--state-dir", metavar="DIR", help="the router's folder for state")
        for add in flags:
            add(action)
        action.add_argument("--redis", metavar="URL", help="the store that routers share, if they do")

        async def act(given: Flags) -> int:
            async with self._opened(given) as keyring:
                return await run(keyring, given)

        action.set_defaults(parser=action, command=lambda given: asyncio.run(act(given)))


def _add_id(parser: Parser) -> None:
    parser.add_argument("id", help="as `list` shows it")


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_tenant_flags(parser: Parser) -> None:
    parser.add_argument("--weight", type=float, help="share of a busy model against other tenants (default 1)")
    _add_limit_flags(parser)


def _add_key_flags(parser: Parser) -> None:
    """What a key can be given: absent flags change nothing, `none` takes a limit away."""
    parser.add_argument("--name", help="for people")
    parser.add_argument("--tenant", help="who shares, pays and is limited together (default: the name)")
    parser.add_argument("--role", action="append", choices=ROLES, help="repeatable (default use)")
    parser.add_argument("--model", action="append", help="what it may use, `*` at the end allowed; repeatable")
    parser.add_argument("--class", dest="band", action="append", choices=CLASSES, help="repeatable (default: all)")
    parser.add_argument("--trusted", action=argparse.BooleanOptionalAction, help="may name the tenant in a header")
    parser.add_argument("--days", type=float, metavar="N", help="valid for so long from now")
    _add_limit_flags(parser)


def _add_limit_flags(parser: Parser) -> None:
    for name, metavar in LIMITS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help="a number, or none")
    parser.add_argument("--strict", action=argparse.BooleanOptionalAction, help="rates hold on idle replicas as well")


def key_fields(flags: Flags, now: float) -> dict[str, Any]:
    given = {
        "name": flags.name,
        "tenant": flags.tenant,
        "roles": flags.role,
        "models": flags.model,
        "classes": flags.band,
        "is_trusted": flags.trusted,
        "expires_at": None if flags.days is None else now + flags.days * 86400.0,
        "limits": limit_fields(flags) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def limit_fields(flags: Flags) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for flag in LIMITS:
        value = getattr(flags, flag.replace("-", "_"))
        if value is not None:
            fields[flag.replace("-", "_")] = None if value == "none" else _number(value)
    if flags.strict is not None:
        fields["is_strict"] = flags.strict
    return fields


async def _create(keyring: Keyring, flags: Flags) -> int:
    now = time.time()
    fields = key_fields(flags, now)
    return await _edit(keyring, lambda book: records.create_key(book, fields, now), _print_created)


async def _change(keyring: Keyring, flags: Flags) -> int:
    fields = key_fields(flags, time.time())
    return await _edit(keyring, lambda book: records.change_key(book, flags.id, fields), _print_keys)


async def _revoke(keyring: Keyring, flags: Flags) -> int:
    return await _edit(keyring, lambda book: records.revoke_key(book, flags.id, time.time()), _print_keys)


async def _set_tenant(keyring: Keyring, flags: Flags) -> int:
    fields: dict[str, Any] = {} if flags.weight is None else {"weight": flags.weight}
    if limits := limit_fields(flags):
        fields["limits"] = limits
    return await _edit(keyring, lambda book: records.set_tenant(book, flags.id, fields), _print_tenants)


async def _remove_tenant(keyring: Keyring, flags: Flags) -> int:
    return await _edit(keyring, lambda book: (records.remove_tenant(book, flags.id),), _print_tenants)


async def _show_keys(keyring: Keyring, flags: Flags) -> int:
    def show(book: Book) -> None:
        keys = list(book.keys.values())
        print(json.dumps([key.shown() for key in keys], indent=2)) if flags.json else _print_keys(*keys)

    return await _show(keyring, show)


async def _show_tenants(keyring: Keyring, flags: Flags) -> int:
    def show(book: Book) -> None:
        tenants = list(book.tenants.values())
        shown = [records.plain(tenant) for tenant in tenants]
        print(json.dumps(shown, indent=2)) if flags.json else _print_tenants(*tenants)

    return await _show(keyring, show)


async def _edit(keyring: Keyring, change: Callable[[Book], tuple[Any, ...]], show: Callable[..., None]) -> int:
    try:
        show(*await keyring.edit(change))
    except PointsmanError as error:
        print(f"pointsman: {error.message}", file=sys.stderr)
        return 1
    return 0


async def _show(keyring: Keyring, show: Callable[[Book], None]) -> int:
    try:
        found = await keyring.store.load(keyring.version)
        if found is not None:
            keyring.take(*found)
    except Exception as error:
        print(f"pointsman: the keys cannot be read: {error}", file=sys.stderr)
        return 1
    show(keyring.callers.book)
    return 0


def _number(text: str) -> int | str:
    """What is no number is told as such by whoever checks the field."""
    return int(text) if text.lstrip("-").isdecimal() else text


def _print_created(key: Key, token: str) -> None:
    print(token)
    print(f"key {key.id} of tenant {key.tenant}; the line above is never shown again", file=sys.stderr)


def _print_keys(*keys: Key) -> None:
    now = time.time()
    rows = [["KEY", "NAME", "TENANT", "ROLES", "MODELS", "CLASSES", "STATE", "LIMITS"]]
    for key in keys:
        state = "revoked" if key.revoked_at is not None else "valid" if key.is_valid(now) else "expired"
        words = [", ".join(each) or "all" for each in (key.roles, key.models, key.classes)]
        rows.append([key.id, key.name, key.tenant, *words, state, _limits(key.limits)])
    _print_table(rows)


def _print_tenants(*tenants: Tenant) -> None:
    rows = [[each.name, f"{each.weight:g}", _limits(each.limits)] for each in tenants]
    _print_table([["TENANT", "WEIGHT", "LIMITS"], *rows])


def _limits(limits: records.Limits) -> str:
    fields: dict[str, Any] = records.plain(limits)
    return ", ".join(f"{name}={value}" for name, value in fields.items()) or "-"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
