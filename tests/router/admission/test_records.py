"""Keys and tenants as records: made, changed, revoked, refused, and kept without their secret."""

from typing import Any

import pytest

from router.admission import records
from router.admission.records import Book, UnknownRecord
from router.errors import InvalidRequest


def test_a_token_is_shown_once_and_its_digest_alone_is_kept() -> None:
    book, key, token = records.create_key(Book(), {"name": "alice"}, 5.0)
    document = records.encode(book)
    assert token.startswith("sk-pm-")
    assert token.encode() not in document
    assert token.rsplit("-", 1)[1].encode() not in document
    assert records.id_of(token) == key.id
    assert key.matches(token)
    assert not key.matches(token + " ")
    assert "digest" not in key.shown()
    assert records.decode(document) == book


def test_only_what_is_given_changes_and_null_takes_a_limit_away() -> None:
    limits = {"requests_per_minute": 5, "tokens_per_day": 9}
    book, key, _ = records.create_key(Book(), {"name": "a", "limits": limits}, 0.0)
    book, changed = records.change_key(book, key.id, {"tenant": "t", "limits": {"requests_per_minute": None}})
    assert (changed.name, changed.tenant, changed.digest) == ("a", "t", key.digest)
    assert (changed.limits.requests_per_minute, changed.limits.tokens_per_day) == (None, 9)


def test_a_revoked_key_stays_revoked_since_when_it_was() -> None:
    book, key, _ = records.create_key(Book(), {}, 0.0)
    book, revoked = records.revoke_key(book, key.id, 7.0)
    assert not revoked.is_valid(0.0)
    assert records.revoke_key(book, key.id, 9.0)[1].revoked_at == 7.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"limits": {"requests_per_minute": 0}}, "requests_per_minute"),
        ({"limits": {"requests_per_minute": -5}}, "requests_per_minute"),
        ({"limits": {"requests_per_minute": "many"}}, "requests_per_minute"),
        ({"limits": {"requests_per_hour": 5}}, "requests_per_hour"),
        ({"limits": {"tokens_per_day": 9, "tokens_per_month": 5}}, "tokens_per_day"),
        ({"limits": {"tokens_per_minute": 9, "tokens_per_day": 5}}, "tokens_per_minute"),
        ({"roles": ["root"]}, "roles"),
        ({"roles": []}, "roles"),
        ({"classes": ["urgent"]}, "classes"),
        ({"models": [""]}, "models"),
        ({"name": "a\nb"}, "name"),
        ({"tenant": "x" * 200}, "tenant"),
        ({"digest": "00"}, "digest"),
        ({"revoked_at": None}, "revoked_at"),
        ({"colour": "red"}, "colour"),
        ({"expires_at": "tomorrow"}, "expires_at"),
    ],
)
def test_what_is_wrong_with_a_key_is_named(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        records.create_key(Book(), fields, 0.0)
    assert refused.value.param == param


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e6, float("nan")])
def test_a_weight_that_makes_no_sense_is_refused(weight: float) -> None:
    with pytest.raises(InvalidRequest, match="weight"):
        records.set_tenant(Book(), "t", {"weight": weight})


def test_tenants_are_set_changed_and_removed() -> None:
    book, _ = records.set_tenant(Book(), "t", {"weight": 2})
    book, tenant = records.set_tenant(book, "t", {"limits": {"tokens_per_minute": 5}})
    assert (tenant.weight, tenant.limits.tokens_per_minute) == (2.0, 5)
    assert records.remove_tenant(book, "t").tenants == {}
    with pytest.raises(UnknownRecord):
        records.remove_tenant(book, "nobody")
    with pytest.raises(UnknownRecord):
        records.change_key(book, "nobody", {})
