from random import Random

from router.core import Lease, Prompt
from tests.router.nouns import make_prompt
from tests.router.routing.published.rig import Rig, end


def cost(rig: Rig, prompt: Prompt, **held: int) -> float:
    return rig.decide(prompt, **held).scores["dynamo-blocks"]


def test_the_cost_is_uncached_blocks_in_flight_and_ours_and_distinct_open_blocks() -> None:
    rig = Rig("dynamo", "a")
    rig.put("prefilling_tokens", a=320)
    assert cost(rig, make_prompt(160), a=32) == (320 + 128) / 16 + 10


def test_blocks_that_open_requests_share_count_once_until_the_last_of_them_ends() -> None:
    rig = Rig("dynamo", "a")
    first, second = rig.place("a", make_prompt(160)), rig.place("a", make_prompt(320))
    assert cost(rig, make_prompt(480)) == 30 + 30
    end(second)
    assert cost(rig, make_prompt(160, first_hash=100)) == 10 + 20
    end(first)
    assert cost(rig, make_prompt(160)) == 10 + 10


def test_a_part_of_a_block_is_each_requests_own() -> None:
    rig = Rig("dynamo", "a")
    rig.place("a", Prompt(20, (1,), 16))
    assert cost(rig, Prompt(20, (1,), 16)) == 20 / 16 + 1 + 2


def test_the_least_cost_wins_and_ties_are_at_random() -> None:
    rig = Rig("dynamo")
    rig.place("a", make_prompt(160, first_hash=500))
    assert rig.often() == {"b", "c"}


def test_after_random_ends_nothing_is_left_open() -> None:
    rig, dice, open_leases = Rig("dynamo", "ab"), Random(5), list[Lease]()
    for _ in range(2000):
        if dice.random() < 0.5 or not open_leases:
            prompt = make_prompt(dice.randrange(400), first_hash=dice.choice([0, 1000]))
            open_leases.append(rig.place(dice.choice("ab"), prompt))
        else:
            end(open_leases.pop(dice.randrange(len(open_leases))))
    for lease in open_leases:
        end(lease)
    assert cost(rig, make_prompt(160)) == 10 + 10
