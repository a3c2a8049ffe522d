"""This room from the settings: bands' terms, callers and where their keys are kept, and whether an address may be
served without any. Knows settings' names; holds nothing.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

from router.admission.bands import NUM_BANDS, BandTerms
from router.admission.bookfile import BookFile
from router.admission.callers import Callers
from router.admission.keyring import Keyring
from router.config import ConfigError, Settings, nearest, pairs
from router.core import Band
from router.store.bookinredis import BookInRedis
from router.store.connection import Store

BOOK_FILE, COPY_FILE = "keys.json", "keys-shared.json"


def band_terms(settings: Settings) -> BandTerms:
    """Raises ConfigError."""
    shares, waits_s = [0.0] * NUM_BANDS, [settings.queue_timeout_s or None] * NUM_BANDS
    for band, share in _by_band("class_share", settings.class_share):
        shares[band] = share or 0.0
    for band, wait_s in _by_band("class_wait", settings.class_wait):
        waits_s[band] = wait_s
    try:
        return BandTerms(min_shares=tuple(shares), max_waits_s=tuple(waits_s))
    except ValueError as error:
        raise ConfigError(f"The settings `class_share` and `class_wait` are wrong: {error}.") from None


def state_folder(settings: Settings, environment: Mapping[str, str]) -> Path:
    """Where what outlives a process is kept."""
    if settings.state_dir:
        return Path(settings.state_dir).expanduser()
    base = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pointsman"


def open_keyring(settings: Settings, folder: Path, shared: Store | None = None) -> Keyring:
    """The keys as they are kept on this host, or in a store that hosts share; of that a copy is kept here, which stands
    until it can be asked. Raises ConfigError where they cannot be read."""
    file = BookFile(folder / (BOOK_FILE if shared is None else COPY_FILE))
    callers = Callers(settings.trust_tenant_header, is_closed=shared is not None and not _is_open(settings))
    keyring = Keyring(file, callers) if shared is None else Keyring(BookInRedis(shared), callers, copy=file)
    try:
        found = file.load_now("")
        if found is not None:
            keyring.take(*found)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The keys in {file.path} cannot be read: {error}.") from None
    if shared is not None:
        keyring.version = ""
    return keyring


def check_addresses(settings: Settings, callers: Callers) -> None:
    """Raises ConfigError for an address that others can reach where anybody could do anything."""
    if settings.keyless:
        return
    if not _is_loopback(settings.host) and not callers.is_guarded("use") and not callers.is_closed:
        raise ConfigError(_public("host", settings.host, "", "use"))
    if not _is_loopback(settings.admin_host) and not callers.is_guarded("admin") and not callers.is_closed:
        raise ConfigError(_public("admin_host", settings.admin_host, " --role admin", "administer"))


def _is_open(settings: Settings) -> bool:
    return settings.keyless or (_is_loopback(settings.host) and _is_loopback(settings.admin_host))


def _public(setting: str, host: str, flags: str, what: str) -> str:
    return (
        f"The setting `{setting}` is {host}, where others could {what} this router without a key: create one with "
        f"`pointsman keys create --name NAME{flags}`, or say --keyless."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _by_band(name: str, texts: Sequence[str]) -> list[tuple[Band, float | None]]:
    words = {band.name.lower(): band for band in Band}
    found = []
    for word, number in pairs(name, texts).items():
        if word not in words:
            hint = nearest(word, list(words))
            raise ConfigError(f"The setting `{name}` names the class `{word}`, which is none{hint}")
        found.append((words[word], number))
    return found
