from pathlib import Path

import pytest

from router.admission.callers import Callers
from router.admission.opening import band_terms, check_addresses, open_keyring
from router.admission.records import Book, create_key
from router.config import ConfigError, Settings
from router.core import Band


def test_a_public_address_without_keys_is_refused_unless_asked_for() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        check_addresses(Settings(host=host, admin_host=host), Callers())
    for host in ("0.0.0.0", "::", "10.0.0.1", "router.example"):
        with pytest.raises(ConfigError, match=r"`host` is .*pointsman keys create --name NAME`, or say --keyless"):
            check_addresses(Settings(host=host), Callers())
        check_addresses(Settings(host=host, keyless=True), Callers())


def test_a_public_admin_address_needs_an_admins_key() -> None:
    callers = Callers()
    callers.replace(create_key(Book(), {"name": "user"}, 0.0)[0], 0.0)
    check_addresses(Settings(host="0.0.0.0"), callers)
    with pytest.raises(ConfigError, match=r"`admin_host` is .*--role admin"):
        check_addresses(Settings(host="0.0.0.0", admin_host="0.0.0.0"), callers)
    callers.replace(create_key(callers.book, {"name": "root", "roles": ["admin"]}, 0.0)[0], 0.0)
    check_addresses(Settings(host="0.0.0.0", admin_host="0.0.0.0"), callers)


def test_terms_of_classes_come_from_the_settings() -> None:
    terms = band_terms(Settings(class_wait=("high=5", "bulk=none"), class_share=("bulk=0.3",), queue_timeout_s=9.0))
    assert tuple(terms.max_waits_s) == (5.0, 9.0, 9.0, None)
    assert terms.min_shares[Band.BULK] == 0.3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"class_share": ("bulk=0.6", "low=0.6")}, "sum up"),
        ({"class_share": ("bulk=lots",)}, "not 'bulk=lots'"),
        ({"class_wait": ("urgent=3",)}, "names the class `urgent`"),
        ({"class_wait": ("high=0",)}, "above 0"),
    ],
)
def test_terms_that_make_no_sense_stop_the_start(fields: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        band_terms(Settings(**fields))  # type: ignore[arg-type]


def test_keys_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("no JSON")
    with pytest.raises(ConfigError, match=r"keys\.json cannot be read"):
        open_keyring(Settings(), tmp_path)
