"""Adapters brought to all replicas of a model, over real sockets: engines that come, go, refuse and forget."""

import asyncio
from pathlib import Path

import pytest

from router.admission.bookfile import BookFile
from router.replicas.rollout import FIRST_RETRY_S, AdapterState, Standing
from router.replicas.wanted import Adapter, WantedBook
from tests.router.replicas.lora_engine import LoraEngine, StoreAtHand, Yard, looking, opened

RED, BLUE = Adapter("red", "/red", "base"), Adapter("blue", "/blue", "base")


@pytest.fixture
def store(tmp_path: Path) -> BookFile:
    return BookFile(tmp_path / "adapters.json")


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def states(standings: "list[Standing] | tuple[Standing, ...]") -> list[AdapterState]:
    return [each.state for each in standings]


async def test_a_load_reaches_all_replicas_and_the_name_can_be_asked_for_when_it_returns(store: BookFile) -> None:
    """Pitfall: an adapter is loaded on one replica only."""
    async with opened(store, LoraEngine(), LoraEngine()) as yard:
        found = await yard.rollout.load(RED)
        assert states(list(found)) == [AdapterState.LOADED] * 2
        assert [engine.loaded for engine in yard.engines] == [{"red": "/red"}] * 2
        assert [yard.adapters_of(engine) for engine in yard.engines] == [{"red"}] * 2
        assert yard.registry.resolve("red")[1] == "red"
        listed = {model["id"]: model["parent"] for model in yard.registry.models()}
        assert listed == {"base": None, "red": "base"}


async def test_a_second_load_of_the_same_tells_nobody_anything(store: BookFile) -> None:
    async with opened(store, LoraEngine(), LoraEngine()) as yard:
        await yard.rollout.load(RED)
        assert states(list(await yard.rollout.load(RED))) == [AdapterState.LOADED] * 2
        assert [engine.orders for engine in yard.engines] == [["load red"]] * 2


async def test_one_that_somebody_else_has_loaded_already_counts_as_loaded(store: BookFile) -> None:
    async with opened(store, LoraEngine()) as yard:
        yard.engines[0].loaded["red"] = "/red"
        yard.engines[0].list_adapters()  # and the router has not seen it yet
        assert states(list(await yard.rollout.load(RED))) == [AdapterState.LOADED]


async def test_what_one_replica_cannot_load_is_said_with_its_words_and_the_other_serves(store: BookFile) -> None:
    bad = LoraEngine()
    bad.missing.add("/red")
    async with opened(store, bad, LoraEngine()) as yard:
        found = {each.replica: each for each in await yard.rollout.load(RED)}
        failed = found[bad.id]
        assert (failed.state, failed.reason, failed.is_refused) == (
            AdapterState.FAILED,
            "No adapter found for /red",
            True,
        )
        assert found[yard.engines[1].id].state is AdapterState.LOADED
        assert "red" in yard.rollout.book.wanted.adapters


async def test_what_failed_on_one_is_tried_again_and_comes_right(store: BookFile) -> None:
    bad = LoraEngine()
    bad.missing.add("/red")
    async with opened(store, bad, LoraEngine()) as yard:
        await yard.rollout.load(RED)
        bad.missing.clear()
        yard.rollout.clock = lambda: yard.registry.clock() + FIRST_RETRY_S
        await until(lambda: yard.adapters_of(bad) == {"red"})
        assert states(list(yard.rollout.standings("red"))) == [AdapterState.LOADED] * 2


async def test_what_nobody_can_load_is_wanted_no_more(store: BookFile) -> None:
    engine = LoraEngine()
    engine.missing.add("/red")
    async with opened(store, engine) as yard:
        assert states(list(await yard.rollout.load(RED))) == [AdapterState.FAILED]
        assert not yard.rollout.book.wanted.adapters
        await yard.rollout.look()
        assert engine.orders == ["load red"]


async def test_an_engine_without_these_routes_says_that_it_loads_none(store: BookFile) -> None:
    engine = LoraEngine()
    engine.has_routes = False
    async with opened(store, engine) as yard:
        (failed,) = await yard.rollout.load(RED)
        assert failed.reason == "this engine loads no adapters while it runs (404 Not Found)"


async def test_a_replica_that_restarts_gets_its_adapters_again(store: BookFile) -> None:
    async with opened(store, LoraEngine(), LoraEngine()) as yard:
        await yard.rollout.load(RED)
        await yard.rollout.load(BLUE)
        engine = yard.engines[0]
        await yard.restart(engine)
        await until(lambda: engine.loaded == {"red": "/red", "blue": "/blue"})
        await until(lambda: yard.adapters_of(engine) == {"red", "blue"})


async def test_a_replica_that_joins_later_gets_what_was_wanted_before(store: BookFile) -> None:
    async with opened(store, LoraEngine()) as yard, LoraEngine() as late:
        await yard.rollout.load(RED)
        yard.registry.reconcile([engine.spec for engine in (*yard.engines, late)])
        fleet = yard.registry.discovery
        fleet.specs = [engine.spec for engine in (*yard.engines, late)]  # type: ignore[attr-defined]
        await until(lambda: late.loaded == {"red": "/red"})


async def test_a_replica_of_another_model_is_left_alone(store: BookFile) -> None:
    async with opened(store, LoraEngine(), LoraEngine("other")) as yard:
        assert len(await yard.rollout.load(RED)) == 1
        await yard.rollout.look()
        assert yard.engines[1].orders == []


async def test_what_is_wanted_outlives_the_router(store: BookFile) -> None:
    async with opened(store, LoraEngine()) as yard:
        await yard.rollout.load(RED)
    async with opened(store, LoraEngine()) as yard:
        await until(lambda: yard.engines[0].loaded == {"red": "/red"})


async def test_an_unload_reaches_all_and_the_name_is_gone_when_it_returns(store: BookFile) -> None:
    async with opened(store, LoraEngine(), LoraEngine()) as yard:
        await yard.rollout.load(RED)
        assert list(await yard.rollout.unload("red", "base")) == []
        assert [engine.loaded for engine in yard.engines] == [{}, {}]
        assert yard.registry.find("red") is None
        assert list(await yard.rollout.unload("red", "base")) == []


async def test_a_replica_that_was_away_at_the_unload_is_told_when_it_comes_back(store: BookFile) -> None:
    async with opened(store, LoraEngine(), LoraEngine()) as yard:
        await yard.rollout.load(RED)
        away = yard.engines[0]
        await yard.lose(away)
        assert [each.replica for each in await yard.rollout.unload("red", "base")] == [away.id]
        await away.return_()  # it did not restart: it still has it
        await until(lambda: away.loaded == {})
        await until(lambda: yard.registry.find("red") is None)


async def test_loading_again_brings_other_weights_of_the_same_name(store: BookFile) -> None:
    async with opened(store, LoraEngine()) as yard:
        await yard.rollout.load(RED)
        newer = Adapter("red", "/redder", "base")
        assert states(list(await yard.rollout.load(newer, again=True))) == [AdapterState.LOADED]
        assert yard.engines[0].loaded == {"red": "/redder"}
        assert yard.engines[0].orders == ["load red", "unload red", "load red"]


async def test_what_made_room_for_others_is_loaded_again_when_it_is_asked_for_and_not_before(store: BookFile) -> None:
    """An engine with a bound on adapters would else lose another for each that it is given back."""
    async with opened(store, LoraEngine(), LoraEngine()) as yard:
        await yard.rollout.load(RED)
        for engine, member in zip(yard.engines, yard.registry.members(), strict=True):
            engine.loaded.clear()
            engine.list_adapters()
            member.relist_soon()
        await until(lambda: yard.registry.find("red") is None)
        await yard.rollout.look()
        assert [engine.orders for engine in yard.engines] == [["load red"]] * 2
        reasons = [(each.state, each.reason) for each in yard.rollout.standings("red")]
        assert reasons == [(AdapterState.WAITING, "it made room for others there")] * 2
        yard.registry.members()[0].replica.in_flight = 3
        for _ in range(3):
            await yard.rollout.hasten("red")
        await until(lambda: yard.registry.find("red") is not None)
        idler, busier = [engine.orders for engine in reversed(yard.engines)]
        # Who asks while it is loaded but not listed may have it told once more.
        assert (busier, set(idler), 2 <= len(idler) <= 4) == (["load red"], {"load red"}, True)
        await yard.rollout.hasten("red")
        await yard.rollout.hasten("nobody")
        yard.registry.members()[0].replica.in_flight = 0


async def test_what_a_sibling_has_just_unloaded_is_not_loaded_for_who_asks_for_it(store: BookFile) -> None:
    async with opened(store, LoraEngine(), looks=False) as yard:
        await yard.rollout.book.want(RED)
        sibling = WantedBook(store)
        await sibling.forget("red", "base")
        async with looking(yard.rollout):
            await yard.rollout.hasten("red")
            await yard.rollout.look()
        assert yard.engines[0].orders == []


async def test_weights_from_elsewhere_under_a_wanted_name_are_said(store: BookFile) -> None:
    engine = LoraEngine()
    engine.loaded["red"] = "/other"
    engine.list_adapters()
    async with opened(store, engine) as yard:
        (found,) = await yard.rollout.load(RED)
        assert (found.state, found.reason) == (AdapterState.LOADED, "it says that it was loaded from /other")


async def test_who_does_not_lead_tells_nobody_of_its_own_accord(store: BookFile) -> None:
    async with opened(store, LoraEngine(), looks=False) as yard:
        yard.rollout.leads = lambda: False
        await yard.rollout.book.want(RED)
        async with looking(yard.rollout):
            await yard.rollout.look()
            assert yard.engines[0].orders == []
            assert states(list(yard.rollout.standings("red"))) == [AdapterState.WAITING]
            # but it does what it is asked for
            assert states(list(await yard.rollout.load(RED))) == [AdapterState.LOADED]


async def test_a_client_that_leaves_stops_no_order(store: BookFile) -> None:
    async with opened(store, LoraEngine()) as yard:
        engine = yard.engines[0]
        engine.may_load.clear()
        loading = asyncio.create_task(_load(yard))
        await engine.until(lambda: engine.orders == ["load red"])
        assert states(list(yard.rollout.standings("red"))) == [AdapterState.LOADING]
        loading.cancel()
        await asyncio.wait([loading])
        engine.may_load.set()
        await until(lambda: yard.adapters_of(engine) == {"red"})


async def test_two_who_ask_for_the_same_cause_one_order() -> None:
    async with opened(StoreAtHand(), LoraEngine()) as yard:
        engine = yard.engines[0]
        engine.may_load.clear()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_load(yard)) for _ in range(3)]
            await engine.until(lambda: engine.orders == ["load red"])
            engine.may_load.set()
        assert [task.result() for task in asked] == [[AdapterState.LOADED]] * 3
        assert engine.orders == ["load red"]


async def _load(yard: Yard) -> list[AdapterState]:
    return states(list(await yard.rollout.load(RED)))


async def test_a_book_that_cannot_be_read_leaves_what_is_known(store: BookFile) -> None:
    async with opened(store, LoraEngine()) as yard:
        await yard.rollout.load(RED)
        store.path.write_text("no book")
        await yard.rollout.look()
        assert "red" in yard.rollout.book.wanted.adapters
        await yard.restart(yard.engines[0])
        await until(lambda: yard.engines[0].loaded == {"red": "/red"})
