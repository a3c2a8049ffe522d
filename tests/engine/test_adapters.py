from collections.abc import Callable
from random import Random

import pytest

from engine.adapters import Adapter, AdapterError, AdapterSlots, UnknownAdapter


def slots(num_slots: int, *names: str) -> AdapterSlots:
    made = AdapterSlots(num_slots)
    for name in names:
        made.add(Adapter(name, f"/{name}", rank=8, digest=0, load=made.next_load()))
    return made


def test_a_slot_is_given_once_and_kept_between_requests() -> None:
    adapters = slots(2, "a", "b")
    a = adapters.find("a")
    for _ in range(2):
        adapters.take(a)
    assert [(each.adapter, each.slot) for each in adapters.take_placements()] == [(a, 0)]
    for _ in range(2):
        adapters.leave(a)
    assert repr(a) == "<Adapter a rank 8 in slot 0 0 running>"
    adapters.take(a)
    assert adapters.take_placements() == ()


def test_the_least_recently_used_idle_adapter_gives_up_its_slot() -> None:
    adapters = slots(2, "a", "b", "c")
    a, b, c = (adapters.find(name) for name in "abc")
    for each in (a, b, a, b):
        adapters.take(each)
        adapters.leave(each)
    adapters.take(c)
    assert (a.slot, b.slot, c.slot) == (None, 1, 0)


def test_a_slot_in_use_is_never_taken() -> None:
    adapters = slots(1, "a", "b")
    a, b = adapters.find("a"), adapters.find("b")
    adapters.take(a)
    assert not adapters.can_take(b)
    assert adapters.can_take(a)
    adapters.leave(a)
    assert adapters.can_take(b)


def test_an_unloaded_adapter_is_not_found_and_leaves_its_slot_with_its_last_request() -> None:
    adapters = slots(1, "a", "b")
    a, b = adapters.find("a"), adapters.find("b")
    adapters.take(a)
    assert adapters.remove("a") is a
    assert "a" not in adapters
    assert repr(a) == "<Adapter a rank 8 in slot 0 1 running gone>"
    assert not adapters.can_take(b)
    adapters.leave(a)
    assert repr(adapters) == "<AdapterSlots 0 of 1 taken, 1 adapters>"


def test_an_adapter_of_the_same_name_is_another_one() -> None:
    adapters = slots(1, "a")
    before = adapters.remove("a")
    adapters.add(Adapter("a", "/a", rank=8, digest=0, load=adapters.next_load()))
    assert adapters.find("a").load != before.load


@pytest.mark.parametrize(
    ("wrong", "error", "complaint"),
    [
        (lambda: slots(1, "a", "a"), AdapterError, "the adapter a is loaded already; unload it first"),
        (lambda: slots(0, "a"), AdapterError, "no room for adapters"),
        (lambda: slots(1).find("a"), UnknownAdapter, "the adapter a is not loaded"),
        (lambda: slots(1).remove("a"), UnknownAdapter, "the adapter a is not loaded"),
    ],
)
def test_what_cannot_be_is_refused(wrong: Callable[[], object], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        wrong()


def test_when_the_contents_are_lost_all_is_placed_again() -> None:
    adapters = slots(2, "a", "b")
    a = adapters.find("a")
    adapters.take(a)
    adapters.leave(a)
    adapters.vacate_all()
    assert adapters.take_placements() == ()
    adapters.take(a)
    assert len(adapters.take_placements()) == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_use_never_gives_one_slot_to_two(seed: int) -> None:
    random = Random(seed)
    adapters = slots(3, *"abcdef")
    running: list[Adapter] = []
    placed: dict[int, Adapter] = {}
    for _ in range(300):
        adapter = random.choice(list(adapters))
        if random.random() < 0.5 and adapters.can_take(adapter):
            adapters.take(adapter)
            running.append(adapter)
        elif running:
            adapters.leave(running.pop(random.randrange(len(running))))
        for placement in adapters.take_placements():
            placed[placement.slot] = placement.adapter
        taken = [each for each in adapters if each.slot is not None]
        assert len({each.slot for each in taken}) == len(taken) <= 3
        assert all(placed[each.slot] is each for each in taken if each.slot is not None)
        assert all(each.slot is not None for each in running)
        assert all(each.num_running == running.count(each) for each in adapters)


def bounded(max_loaded: int, *names: str) -> AdapterSlots:
    made = AdapterSlots(1, max_loaded)
    for name in names:
        made.add(Adapter(name, f"/{name}", rank=8, digest=0, load=made.next_load()))
    return made


def test_the_least_recently_used_adapter_leaves_a_full_host_memory() -> None:
    adapters = bounded(3, "a", "b", "c")
    a, b = adapters.find("a"), adapters.find("b")
    adapters.take(a)
    adapters.leave(a)
    assert adapters.crowd_out() is b
    assert (b.is_gone, adapters.num_crowded_out, [each.name for each in adapters]) == (True, 1, ["c", "a"])
    assert adapters.crowd_out() is None


def test_adapters_in_use_and_pinned_ones_stay() -> None:
    adapters = bounded(2, "a", "b")
    adapters.find("b").is_pinned = True
    adapters.take(adapters.find("a"))
    with pytest.raises(AdapterError, match=r"2 adapters are loaded and none can leave \(--max-cpu-loras\)"):
        adapters.check_new("c")
    assert adapters.crowd_out() is None
    adapters.leave(adapters.find("a"))
    adapters.check_new("c")
    assert repr(adapters.crowd_out()) == "<Adapter a rank 8 in host memory 0 running gone>"


def test_a_bounded_host_memory_never_holds_more() -> None:
    random, adapters, running = Random(7), AdapterSlots(2, 4), list[Adapter]()
    for number in range(500):
        match random.randrange(3):
            case 0:
                try:
                    adapters.check_new(f"a{number}")
                except AdapterError:
                    assert all(each.num_running for each in adapters)
                    continue
                adapters.crowd_out()
                adapters.add(Adapter(f"a{number}", "/", rank=8, digest=0, load=adapters.next_load()))
            case 1 if len(adapters):
                adapter = random.choice(list(adapters))
                if adapters.can_take(adapter):
                    adapters.take(adapter)
                    running.append(adapter)
            case 2 if running:
                adapters.leave(running.pop(random.randrange(len(running))))
        assert len(adapters) <= 4
        assert {each for each in adapters if each.num_running} == set(running)
    assert adapters.num_crowded_out > 10
