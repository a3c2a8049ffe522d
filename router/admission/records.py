"""Keys and tenants as they are kept: their fields, what makes them wrong, and how they are changed. Knows no clock but
what it is given, no files and no requests.

A key's secret is shown once, when it is made; kept is its SHA-256, which is enough for 192 random bits. All of a book
is one JSON document, so that whoever keeps it replaces it as a whole.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from router.core import Band
from router.errors import InvalidRequest, PointsmanError

ROLES = ("use", "admin", "metrics")
CLASSES = tuple(band.name.lower() for band in Band)
PREFIX = "sk-pm-"
MAX_NAME_CHARS = 128


class UnknownRecord(PointsmanError):
    """There is no such key or tenant."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """None is no limit. Where `is_strict` is false the rates hold only while the model's replicas are busy: what nobody
    else has a use for may be had. Budgets and concurrency hold always. Days and months are those of UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    is_strict: bool = False

    def check(self) -> None:
        """Raises InvalidRequest that names the field."""
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 10**15:
                raise InvalidRequest(f"`{name}` must be at least 1, not {value}; to end all use, revoke.", param=name)
        day, month, minute = self.tokens_per_day, self.tokens_per_month, self.tokens_per_minute
        if day is not None and month is not None and day > month:
            raise InvalidRequest("`tokens_per_day` must not be above `tokens_per_month`.", param="tokens_per_day")
        budget = min((each for each in (day, month) if each is not None), default=None)
        if minute is not None and budget is not None and minute > budget:
            raise InvalidRequest("`tokens_per_minute` must not be above a budget.", param="tokens_per_minute")


_NUMBERS = tuple(name for name in Limits.__struct_fields__ if name != "is_strict")
NO_LIMITS = Limits()


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`models` and `classes` are what may be asked for, all where empty; a model may end in `*`. A trusted key may name
    the tenant of each request in a header. Times are Unix seconds."""

    id: str
    digest: str
    name: str
    tenant: str
    created_at: float
    roles: tuple[str, ...] = ("use",)
    models: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    is_trusted: bool = False
    limits: Limits = NO_LIMITS
    expires_at: float | None = None
    revoked_at: float | None = None

    def check(self) -> None:
        """Raises InvalidRequest that names the field."""
        _check_name("name", self.name)
        _check_name("tenant", self.tenant)
        _check_words("roles", self.roles, ROLES)
        _check_words("classes", self.classes, CLASSES)
        if not self.roles:
            raise InvalidRequest("`roles` must not be empty; to end all use, revoke.", param="roles")
        for model in self.models:
            _check_name("models", model)
        self.limits.check()

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def matches(self, token: str) -> bool:
        """Takes as long whatever is wrong with it."""
        return hmac.compare_digest(digest_of(token), self.digest)

    def shown(self) -> dict[str, Any]:
        """All but the digest, for people."""
        fields = plain(self)
        del fields["digest"]
        return fields


class Tenant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What holds for all keys of a tenant together. `weight` is its share of a busy pool against other tenants'."""

    name: str
    weight: float = 1.0
    limits: Limits = NO_LIMITS

    def check(self) -> None:
        _check_name("name", self.name)
        if not 0.001 <= self.weight <= 1000.0:
            raise InvalidRequest("`weight` must be from 0.001 to 1000.", param="weight")
        self.limits.check()


class Book(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All keys by id and tenants by name."""

    keys: Mapping[str, Key] = {}
    tenants: Mapping[str, Tenant] = {}


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def id_of(token: str) -> str:
    """The key id that a token claims to be of; empty where it is none of ours."""
    id, _, secret = token.removeprefix(PREFIX).partition("-")
    return id if token.startswith(PREFIX) and secret else ""


def create_key(book: Book, fields: Mapping[str, Any], now: float) -> tuple[Book, Key, str]:
    """A new key and its token, which is never seen again. Raises InvalidRequest."""
    id, secret = secrets.token_hex(6), secrets.token_hex(24)
    token = f"{PREFIX}{id}-{secret}"
    _refuse_unknown(fields, Key)
    own = {"id": id, "digest": digest_of(token), "created_at": now}
    named = {"name": fields.get("name") or id, "tenant": fields.get("tenant") or fields.get("name") or id}
    key = _made(Key, {**fields, **named, **own})
    return _with_key(book, key), key, token


def change_key(book: Book, id: str, fields: Mapping[str, Any]) -> tuple[Book, Key]:
    """Only what is given changes; limits too, one by one (null takes a limit away). Raises UnknownRecord."""
    _refuse_unknown(fields, Key)
    key = _made(Key, _merged(msgspec.to_builtins(_key(book, id)), fields))
    return _with_key(book, key), key


def revoke_key(book: Book, id: str, now: float) -> tuple[Book, Key]:
    """It is never valid again. Raises UnknownRecord."""
    key = _key(book, id)
    key = msgspec.structs.replace(key, revoked_at=now if key.revoked_at is None else key.revoked_at)
    return _with_key(book, key), key


def set_tenant(book: Book, name: str, fields: Mapping[str, Any]) -> tuple[Book, Tenant]:
    """Create it, or change what is given. Raises InvalidRequest."""
    _refuse_unknown(fields, Tenant)
    tenant = book.tenants.get(name) or Tenant(name=name)
    tenant = _made(Tenant, _merged(msgspec.to_builtins(tenant), fields) | {"name": name})
    return msgspec.structs.replace(book, tenants={**book.tenants, name: tenant}), tenant


def remove_tenant(book: Book, name: str) -> Book:
    """Its keys stay, without weight and limits in common. Raises UnknownRecord."""
    if name not in book.tenants:
        raise UnknownRecord(f"There is no tenant `{name}`.", param="name")
    return msgspec.structs.replace(book, tenants={key: tenant for key, tenant in book.tenants.items() if key != name})


def plain(record: Key | Tenant | Limits) -> dict[str, Any]:
    """Its fields, those at their defaults left out."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields


def encode(book: Book) -> bytes:
    return msgspec.json.format(msgspec.json.encode(book), indent=1)


def decode(document: bytes) -> Book:
    """Raises ValueError for what is no book."""
    return msgspec.json.decode(document, type=Book)


# Of a path like `$.limits.tokens_per_day` or `$.roles[...]`.
_LAST_NAME = re.compile(r"^`\$(?:\.\w+)*?\.?(\w+)(?:\[.*)?`$")
_FIXED = ("id", "digest", "created_at", "revoked_at")


def _refuse_unknown(fields: Mapping[str, Any], kind: type[Key] | type[Tenant]) -> None:
    for name in fields:
        if name not in kind.__struct_fields__ or name in _FIXED:
            raise InvalidRequest(f"`{name}` is not a field that can be set.", param=name)


def _made(kind: Any, fields: Mapping[str, Any]) -> Any:
    try:
        made = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        unknown = re.search(r"unknown field `(\w+)`", reason)
        name = unknown[1] if unknown else _LAST_NAME.sub(r"\1", path) or None
        raise InvalidRequest(f"{reason}{f' in `{name}`' if name and not unknown else ''}.", param=name) from None
    made.check()
    return made


def _merged(before: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    limits = fields.get("limits")
    merged = {**before, **fields}
    if isinstance(limits, Mapping):
        merged["limits"] = {**before.get("limits", {}), **limits}
    return merged


def _with_key(book: Book, key: Key) -> Book:
    return msgspec.structs.replace(book, keys={**book.keys, key.id: key})


def _key(book: Book, id: str) -> Key:
    key = book.keys.get(id)
    if key is None:
        raise UnknownRecord(f"There is no key `{id}`.", param="id")
    return key


def _check_name(field: str, value: str) -> None:
    if not value or len(value) > MAX_NAME_CHARS or not value.isprintable() or value != value.strip():
        raise InvalidRequest(f"`{field}` must be a printable name of at most {MAX_NAME_CHARS}.", param=field)


def _check_words(field: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    for value in values:
        if value not in known:
            raise InvalidRequest(f"`{field}` must be of {', '.join(known)}, not `{value}`.", param=field)
