"""Who asks: the caller behind a credential, what it may ask for, and where it stands in line. Knows keys, tenants and
their accounts; knows no HTTP, no files and no Redis.

The tenant comes from the credential. A header only divides it, into flows that share what is the tenant's, unless its
sender is trusted. While there is no key at all, everybody is one caller who may do everything.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from router.admission.accounts import Account
from router.admission.bands import band_of_priority
from router.admission.records import NO_LIMITS, Book, Key, Limits, Tenant, id_of
from router.core import Band, Request, Standing
from router.errors import Forbidden, Unauthorized

ANYONE = "default"
# Standings kept ready for a caller: flows are a client's words.
MAX_STANDINGS = 1024


@dataclass(eq=False, slots=True)
class Caller:
    """`accounts` are those of its key and its tenant, as far as they are limited."""

    tenant: str
    key: Key | None = None
    weight: float = 1.0
    is_trusted: bool = False
    accounts: Sequence[Account] = ()
    _bands: Mapping[Band, Band] = field(init=False)
    _standings: dict[tuple[str | None, Band], Standing] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        allowed = [Band[name.upper()] for name in self.key.classes] if self.key and self.key.classes else list(Band)
        self._bands = {band: _clamped(band, allowed) for band in Band}

    def may_use(self, model: str) -> bool:
        patterns = self.key.models if self.key is not None else ()
        return not patterns or any(_fits(model, pattern) for pattern in patterns)

    def check_model(self, model: str) -> None:
        """Raises Forbidden."""
        if not self.may_use(model):
            raise Forbidden(f"This key may not use the model `{model}`.", param="model", code="model_not_allowed")

    def standing(self, request: Request, named: str | None) -> Standing:
        """Of who names this tenant, in the class that it asks for, or the next one that its key allows."""
        asked = request.band if request.band is not None else band_of_priority(request.priority)
        where = (named, asked)
        standing = self._standings.get(where)
        if standing is None:
            if len(self._standings) >= MAX_STANDINGS:
                self._standings.clear()
            standing = self._standings[where] = self._new_standing(*where)
        return standing

    def _new_standing(self, named: str | None, asked: Band) -> Standing:
        band = self._bands[asked]
        if named is None or named == self.tenant:
            return Standing(tenant=self.tenant, band=band, weight=self.weight)
        if self.is_trusted:
            return Standing(tenant=named, band=band)
        return Standing(tenant=self.tenant, flow=named, band=band, weight=self.weight)

    def __repr__(self) -> str:
        return f"<Caller {self.tenant} by {f'key {self.key.id}' if self.key else 'no key'}>"


def _clamped(band: Band, allowed: Sequence[Band]) -> Band:
    """The first allowed one from there on, or the last there is."""
    return min((each for each in allowed if each >= band), default=max(allowed))


def _fits(model: str, pattern: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


@dataclass(eq=False, slots=True)
class Callers:
    """All callers by key. `trusts_anyone`: where there are no keys, a header may name the tenant; `is_closed`: where
    there are none, nobody may do anything, as others can reach us. `refill` asks those who share an account."""

    trusts_anyone: bool = False
    is_closed: bool = False
    book: Book = field(default_factory=Book)
    accounts: dict[str, Account] = field(default_factory=dict)
    num_routers: int = 1
    refill: Callable[[Account, float], Awaitable[None]] | None = None
    _by_key: dict[str, Caller] = field(default_factory=dict, init=False)
    _anyone: Caller = field(init=False)

    def __post_init__(self) -> None:
        self._anyone = Caller(ANYONE, is_trusted=self.trusts_anyone)

    @property
    def are_keys_needed(self) -> bool:
        """One that was revoked counts as well: taking the last key away opens no door."""
        return bool(self.book.keys)

    def replace(self, book: Book, now: float) -> None:
        """Other keys and tenants from now on. Accounts of those that stay go on."""
        self.book = book
        self._by_key = {id: self._caller(key, now) for id, key in book.keys.items()}
        tenant = book.tenants.get(ANYONE)
        self._anyone = Caller(
            ANYONE,
            weight=tenant.weight if tenant else 1.0,
            is_trusted=self.trusts_anyone,
            accounts=self._accounts(None, tenant, now),
        )
        wanted = {account.name for caller in (*self._by_key.values(), self._anyone) for account in caller.accounts}
        for name in self.accounts.keys() - wanted:
            del self.accounts[name]

    def identify(self, credential: str | None, unix_s: float, role: str = "use") -> Caller:
        """Raises Unauthorized for no or a wrong key, Forbidden for one without this role."""
        if not self.is_guarded(role):
            return self._anyone if not self.book.keys else self._known(credential, unix_s) or self._anyone
        if credential is None:
            raise Unauthorized("No API key was given; send it as `Authorization: Bearer KEY`.")
        caller = self._known(credential, unix_s)
        if caller is None or caller.key is None:
            raise Unauthorized("The API key is wrong, has been revoked, or has expired.")
        if role not in caller.key.roles and not (role == "metrics" and "admin" in caller.key.roles):
            raise Forbidden(f"This API key has no role `{role}`.", code="role_not_allowed")
        return caller

    def is_guarded(self, role: str) -> bool:
        """Use is guarded once there is a key, a role of operators once a key has it."""
        if self.is_closed:
            return True
        if role == "use":
            return bool(self.book.keys)
        roles = {role, "admin"}
        return any(roles & set(key.roles) for key in self.book.keys.values())

    def divide(self, num_routers: int) -> None:
        """Each of so many routers counts limits for itself."""
        self.num_routers = num_routers
        for account in self.accounts.values():
            account.divide(num_routers)

    def _known(self, credential: str | None, unix_s: float) -> Caller | None:
        caller = self._by_key.get(id_of(credential)) if credential is not None else None
        if caller is None or caller.key is None or credential is None:
            return None
        return caller if caller.key.matches(credential) and caller.key.is_valid(unix_s) else None

    def _caller(self, key: Key, now: float) -> Caller:
        tenant = self.book.tenants.get(key.tenant)
        weight = tenant.weight if tenant else 1.0
        return Caller(key.tenant, key, weight, key.is_trusted, self._accounts(key, tenant, now))

    def _accounts(self, key: Key | None, tenant: Tenant | None, now: float) -> Sequence[Account]:
        limited = [(f"key {key.id}", key.limits)] if key is not None else []
        limited += [(f"tenant {tenant.name}", tenant.limits)] if tenant is not None else []
        return [self._account(name, limits, now) for name, limits in limited if limits != NO_LIMITS]

    def _account(self, name: str, limits: Limits, now: float) -> Account:
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = Account(name, limits, now, share=1.0 / self.num_routers)
        else:
            account.change(limits, now)
        return account

    def __repr__(self) -> str:
        return f"<Callers {len(self._by_key)} keys, {len(self.book.tenants)} tenants>"
