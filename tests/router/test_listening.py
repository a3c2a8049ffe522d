"""Whose responses are whose: a tenant's, whatever key of theirs is shown."""

from typing import Any, cast

import pytest

from router.admission.callers import Callers
from router.admission.gate import Gate
from router.admission.records import Book, create_key
from router.config import Settings
from router.core import Headers
from router.errors import Forbidden, Unauthorized
from router.listening import Begin, new_responses
from router.store.connection import Store
from router.transports.responses.archive import Archive
from router.transports.responses.desk import ResponseDesk
from router.transports.responses.here import ArchiveHere
from tests.router.nouns import FakeClock


def new_desk(callers: Callers, store: Store | None = None, **settings: Any) -> ResponseDesk:
    return new_responses(Settings(**settings), store, Gate(1, callers=callers), cast(Begin, None), FakeClock())


def callers_of(*fields: dict[str, object]) -> tuple[Callers, list[Headers]]:
    """And what each key's client shows."""
    book, shown = Book(), list[Headers]()
    for each in fields:
        book, _, token = create_key(book, each, 0.0)
        shown.append((("authorization", f"Bearer {token}"),))
    callers = Callers()
    callers.replace(book, 0.0)
    return callers, shown


def test_keys_of_one_tenant_share_responses_and_others_do_not_see_them() -> None:
    callers, (one, two, other) = callers_of(
        {"name": "one", "tenant": "t"}, {"name": "two", "tenant": "t"}, {"name": "other"}
    )
    desk = new_desk(callers)
    assert [desk.owner_of(each) for each in (one, two, other)] == ["t", "t", "other"]


def test_a_tenant_is_named_in_a_header_by_those_alone_who_are_trusted() -> None:
    callers, (plain, trusted) = callers_of({"name": "plain"}, {"name": "front", "is_trusted": True})
    desk = new_desk(callers)
    named = (("x-pointsman-tenant", "t"),)
    assert [desk.owner_of((*each, *named)) for each in (plain, trusted)] == ["plain", "t"]


def test_who_shows_no_good_key_owns_nothing() -> None:
    callers, shown = callers_of({"name": "one"}, {"name": "operator", "roles": ["metrics"]})
    desk = new_desk(callers)
    for headers in ((), (("authorization", "Bearer sk-bad"),)):
        with pytest.raises(Unauthorized):
            desk.owner_of(headers)
    with pytest.raises(Forbidden):
        desk.owner_of(shown[1])


def test_without_keys_all_are_one_tenant() -> None:
    desk = new_desk(Callers())
    assert desk.owner_of(()) == desk.owner_of((("authorization", "Bearer whatever"),))


def test_responses_are_kept_in_redis_where_there_is_one_within_the_limits_that_are_set() -> None:
    here = new_desk(Callers(), max_responses_bytes=7, response_keep_s=5.0)
    assert isinstance(here.archive, ArchiveHere)
    assert (here.archive.limits.owner_bytes, here.archive.limits.keep_s) == (7, 5.0)
    assert isinstance(new_desk(Callers(), Store("unix:///nowhere")).archive, Archive)
