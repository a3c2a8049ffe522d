"""Secrets of webhooks that are replaced while routers run, over a real Redis."""

import base64
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from router.jobs.secrets import FRESH_S, MOST_MADE, SecretBook
from router.jobs.signing import PREFIX
from router.store.connection import Store
from tests.router.jobs.rig import SECRET, open_rig, patiently
from tests.router.jobs.test_hooks import SHOWN_SECRET, Receiver
from tests.router.nouns import FakeClock

BODY = b'{"a":1}'


class Wall(FakeClock):
    """Seconds since 1970."""

    def __init__(self) -> None:
        super().__init__(1_900_000_000.0)


async def secrets_of(book: SecretBook) -> list[str]:
    return [PREFIX + base64.b64encode(secret).decode() for secret in (await book.signer()).secrets]


async def test_a_new_secret_signs_first_and_the_one_before_for_a_while(store: Store) -> None:
    wall = Wall()
    book = SecretBook(store, wall=wall)
    assert await secrets_of(book) == []
    first = await book.rotate(0.0)
    assert await secrets_of(book) == [first]
    wall.now += 10.0
    second = await book.rotate(60.0)
    assert await secrets_of(book) == [second, first]
    wall.now += 60.0
    assert await secrets_of(book) == [second]
    wall.now += 1e6
    assert await secrets_of(book) == [second]


async def test_what_ends_soon_is_not_kept_longer_by_another_rotation(store: Store) -> None:
    wall = Wall()
    book = SecretBook(store, wall=wall)
    first = await book.rotate(0.0)
    await book.rotate(10.0)
    await book.rotate(1000.0)
    wall.now += 11.0
    assert first not in await secrets_of(book)


async def test_all_processes_sign_with_it_and_the_settings_own_sign_last(store: Store) -> None:
    wall = Wall()
    one, other = SecretBook(store, [SECRET], wall), SecretBook(store, [SECRET], wall)
    assert await secrets_of(other) == [SHOWN_SECRET]
    made = await one.rotate(60.0)
    wall.now += FRESH_S
    assert await secrets_of(other) == [made, SHOWN_SECRET]


async def test_operators_are_told_of_secrets_and_never_what_they_are(store: Store) -> None:
    book = SecretBook(store, [SECRET], Wall())
    made = [await book.rotate(60.0) for _ in range(2)]
    told = await book.told()
    assert [each["from"] for each in told] == ["rotation", "rotation", "settings"]
    assert {each["signs_until"] for each in told} == {None, Wall().now + 60.0}
    assert len({each["id"] for each in told}) == 3
    assert not any(secret.removeprefix(PREFIX) in str(told) for secret in [*made, SHOWN_SECRET])


async def test_however_often_it_is_rotated_few_are_kept(store: Store) -> None:
    wall = Wall()
    book = SecretBook(store, wall=wall)
    for _ in range(MOST_MADE + 5):
        wall.now += 1.0
        newest = await book.rotate(1e6)
    found = await secrets_of(book)
    assert (len(found), found[0]) == (MOST_MADE, newest)


async def test_the_pages_rotate_and_webhooks_are_signed_by_old_and_new(store: Store, tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, open_rig(store, tmp_path, hooks=True, answers=True) as rig:
        status, made = await rig.fetch("POST", "/admin/webhooks/secrets", {"overlap_seconds": 3600})
        assert (status, [each["from"] for each in made["secrets"]]) == (201, ["rotation", "settings"])
        _, told = await rig.fetch("GET", "/admin/webhooks/secrets")
        assert told == {"secrets": made["secrets"]}
        await rig.submit(webhook_endpoint=receiver.url)
        await patiently(lambda: receiver.received)
        headers, body = receiver.received[0]
        for secret in (made["secret"], SHOWN_SECRET):
            Webhook(secret).verify(body, headers)
        with pytest.raises(WebhookVerificationError):
            Webhook("whsec_" + base64.b64encode(b"x" * 32).decode()).verify(body, headers)


@pytest.mark.parametrize("overlap", [-1, "1", True, 1e9])
async def test_a_wrong_overlap_is_refused(store: Store, tmp_path: Path, overlap: object) -> None:
    async with open_rig(store, tmp_path) as rig:
        status, told = await rig.fetch("POST", "/admin/webhooks/secrets", {"overlap_seconds": overlap})
        assert (status, told["error"]["param"]) == (400, "overlap_seconds")
