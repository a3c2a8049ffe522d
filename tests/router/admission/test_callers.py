"""Who a credential makes of a request, and what a client's own words can change about it."""

from typing import Any

import pytest

from router.admission.callers import Callers
from router.admission.records import Book, create_key, revoke_key, set_tenant
from router.admission.terms import terms
from router.core import Band, Standing
from router.errors import Forbidden, Unauthorized
from tests.router.nouns import make_request

NOW = 1_000_000.0


def opened(*keys: dict[str, Any], tenants: dict[str, dict[str, Any]] | None = None) -> tuple[Callers, list[str]]:
    book, tokens = Book(), []
    for fields in keys:
        book, _, token = create_key(book, fields, 0.0)
        tokens.append(token)
    for name, fields in (tenants or {}).items():
        book, _ = set_tenant(book, name, fields)
    callers = Callers()
    callers.replace(book, 0.0)
    return callers, tokens


def standing(callers: Callers, token: str | None, *headers: tuple[str, str], **fields: Any) -> Standing:
    return callers.identify(token, NOW).standing(make_request("r", headers=headers, **fields), terms(headers).tenant)


def test_a_header_that_claims_another_tenant_does_not_escape_the_quota() -> None:
    limits = {"requests_per_minute": 5}
    callers, (alice, _) = opened({"tenant": "alice", "limits": limits}, {"tenant": "bob"})
    claimed = standing(callers, alice, ("x-pointsman-tenant", "bob"))
    assert claimed == Standing(tenant="alice", flow="bob"), "it divides what is alice's, no more"
    synonym = standing(callers, alice, ("x-llm-d-inference-fairness-id", "carol"))
    assert synonym.tenant == "alice"
    accounts = callers.identify(alice, NOW).accounts
    assert [account.limits.requests_per_minute for account in accounts] == [5]


def test_a_trusted_sender_names_the_tenant() -> None:
    callers, (gateway,) = opened({"name": "gateway", "is_trusted": True})
    assert standing(callers, gateway, ("x-pointsman-tenant", "bob")) == Standing(tenant="bob")
    assert standing(callers, gateway) == Standing(tenant="gateway")


@pytest.mark.parametrize(
    ("classes", "asked", "got"),
    [
        ((), Band.HIGH, Band.HIGH),
        (("normal", "bulk"), Band.HIGH, Band.NORMAL),
        (("normal", "bulk"), Band.LOW, Band.BULK),
        (("high",), Band.BULK, Band.HIGH),
    ],
)
def test_the_class_is_clamped_to_what_the_key_allows(classes: tuple[str, ...], asked: Band, got: Band) -> None:
    callers, (token,) = opened({"classes": classes})
    assert standing(callers, token, band=asked).band is got


def test_without_any_key_everybody_may_do_everything_until_one_is_made() -> None:
    callers = Callers()
    assert standing(callers, None, ("x-pointsman-tenant", "x")) == Standing(tenant="default", flow="x")
    assert standing(callers, "whatever") == Standing()
    book, key, token = create_key(Book(), {"name": "k"}, 0.0)
    callers.replace(book, 0.0)
    with pytest.raises(Unauthorized):
        callers.identify(None, NOW)
    assert callers.identify(token, NOW).tenant == "k"
    callers.replace(revoke_key(book, key.id, NOW)[0], 0.0)
    for credential in (None, token):
        with pytest.raises(Unauthorized):
            callers.identify(credential, NOW)


def test_a_key_that_expired_is_no_key() -> None:
    callers, (token,) = opened({"expires_at": NOW})
    assert callers.identify(token, NOW - 1).tenant
    with pytest.raises(Unauthorized):
        callers.identify(token, NOW)


def test_roles_guard_what_they_name() -> None:
    callers, (user,) = opened({"name": "user"})
    assert callers.identify(None, NOW, "admin").key is None, "nobody could ever get in else"
    callers, (user, admin, scraper) = opened(
        {"name": "user"}, {"name": "root", "roles": ["admin"]}, {"name": "prometheus", "roles": ["metrics"]}
    )
    assert callers.identify(admin, NOW, "admin").tenant == "root"
    assert callers.identify(scraper, NOW, "metrics").tenant == "prometheus"
    assert callers.identify(admin, NOW, "metrics").tenant == "root"
    for token, role in ((user, "admin"), (admin, "use"), (scraper, "admin"), (user, "metrics")):
        with pytest.raises(Forbidden, match=f"no role `{role}`"):
            callers.identify(token, NOW, role)


def test_a_token_that_differs_in_its_last_letter_is_wrong() -> None:
    callers, (token,) = opened({})
    for wrong in (token[:-1] + ("0" if token[-1] != "0" else "1"), token + "0", token[:-1], "sk-pm-", "é" * 40):
        with pytest.raises(Unauthorized):
            callers.identify(wrong, NOW)


def test_weights_and_limits_of_a_tenant_hold_for_all_its_keys_together() -> None:
    callers, (one, other) = opened(
        {"tenant": "acme"},
        {"tenant": "acme", "limits": {"concurrent_requests": 3}},
        tenants={"acme": {"weight": 4.0, "limits": {"tokens_per_minute": 100}}},
    )
    first, second = callers.identify(one, NOW), callers.identify(other, NOW)
    assert first.weight == standing(callers, one).weight == 4.0
    assert first.accounts[-1] is second.accounts[-1]
    assert [account.name for account in second.accounts][1:] == ["tenant acme"]


def test_accounts_go_on_when_the_book_changes_and_end_with_their_key() -> None:
    callers, (token,) = opened({"limits": {"requests_per_minute": 2}})
    (account,) = callers.identify(token, NOW).accounts
    account.enter(0.0, NOW, is_busy=True)
    key = next(iter(callers.book.keys.values()))
    callers.replace(set_tenant(callers.book, "x", {})[0], 0.0)
    assert callers.identify(token, NOW).accounts == [account]
    callers.replace(Book(), 0.0)
    assert (callers.accounts, repr(callers)) == ({}, "<Callers 0 keys, 0 tenants>")
    assert key.id in account.name


def test_flows_are_a_clients_words_and_are_not_kept_without_bound() -> None:
    callers, (token,) = opened({})
    for number in range(5000):
        standing(callers, token, ("x-pointsman-tenant", f"flow{number}"))
    assert len(callers.identify(token, NOW)._standings) <= 1024
