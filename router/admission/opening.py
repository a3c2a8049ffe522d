"""This room from the settings: bands' terms, callers and where their keys are kept, and whether an address may be
served without any. Knows settings' names; holds nothing.
"""

import ipaddress
from pathlib import Path

from router.admission.bands import NUM_BANDS, BandTerms
from router.admission.bookfile import BookFile
from router.admission.callers import Callers
from router.admission.keyring import Keyring
from router.config import ConfigError, Settings, nearest, pairs
from router.core import Band

BOOK_FILE = "keys.json"


def band_terms(settings: Settings) -> BandTerms:
    """Raises ConfigError."""
    shares, waits_s = [0.0] * NUM_BANDS, [settings.queue_timeout_s or None] * NUM_BANDS
    for band, share in _by_band(settings, "class_share"):
        shares[band] = share or 0.0
    for band, wait_s in _by_band(settings, "class_wait"):
        waits_s[band] = wait_s
    try:
        return BandTerms(min_shares=tuple(shares), max_waits_s=tuple(waits_s))
    except ValueError as error:
        raise ConfigError(f"The settings `class_share` and `class_wait` are wrong: {error}.") from None


def open_keyring(settings: Settings, folder: Path) -> Keyring:
    """The keys as they are kept on this host. Raises ConfigError where they cannot be read."""
    store = BookFile(folder / BOOK_FILE)
    keyring = Keyring(store, Callers(settings.trust_tenant_header))
    try:
        found = store.load_now(keyring.version)
        if found is not None:
            keyring.take(*found)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The keys in {store.path} cannot be read: {error}.") from None
    return keyring


def check_addresses(settings: Settings, callers: Callers) -> None:
    """Raises ConfigError for an address that others can reach where anybody could do anything."""
    if settings.keyless:
        return
    if not _is_loopback(settings.host) and not callers.is_guarded("use"):
        raise ConfigError(_public("host", settings.host, "", "use"))
    if not _is_loopback(settings.admin_host) and not callers.is_guarded("admin"):
        raise ConfigError(_public("admin_host", settings.admin_host, " --role admin", "administer"))


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


def _by_band(settings: Settings, name: str) -> list[tuple[Band, float | None]]:
    words = {band.name.lower(): band for band in Band}
    found = []
    for word, number in pairs(settings, name).items():
        if word not in words:
            hint = nearest(word, list(words))
            raise ConfigError(f"The setting `{name}` names the class `{word}`, which is none{hint}")
        found.append((words[word], number))
    return found
