from router.core import Prompt
from router.routing.published.preble import WINDOW_S
from tests.router.nouns import make_prompt
from tests.router.routing.published.rig import Rig, end


def end_of(rig: Rig, name: str, seconds: float) -> None:
    """A whole answer that decoded for so long."""
    lease = rig.place(name, make_prompt(16, first_hash=10**7))
    lease.started_at, lease.ended_at = 0.0, seconds
    end(lease)


def test_a_prompt_more_than_half_known_is_exploited_where_it_is() -> None:
    rig = Rig("preble")
    rig.place("b", make_prompt(160))
    assert rig.choose(make_prompt(304)) == "b"
    assert rig.choose(make_prompt(320)) != "b", "half missed is explored"


def test_exploring_takes_the_least_prefill_of_the_last_three_minutes() -> None:
    rig = Rig("preble")
    rig.place("a", make_prompt(1600, first_hash=1000))
    rig.place("b", make_prompt(3200, first_hash=2000))
    rig.place("c", make_prompt(4800, first_hash=3000))
    assert rig.choose(make_prompt(64, first_hash=9000)) == "a"
    rig.clock.now += WINDOW_S + 1
    rig.place("a", make_prompt(16, first_hash=5000))
    assert rig.choose(make_prompt(64, first_hash=9000)) == "b", "what is older has no weight"


def test_open_requests_weigh_by_the_median_time_of_decoding() -> None:
    rig = Rig("preble", "ab")
    rig.place("a", make_prompt(1600, first_hash=1000))
    rig.put("in_flight", b=3)
    assert rig.choose(make_prompt(64, first_hash=9000)) == "b"
    end_of(rig, "b", seconds=5.0)
    assert rig.choose(make_prompt(64, first_hash=9000)) == "a"


def test_a_fuller_replicas_prefixes_move_to_the_emptiest() -> None:
    rig = Rig("preble", "ab")
    rig.place("b", make_prompt(16, first_hash=9000))
    for number in range(99):
        rig.place("a", make_prompt(160, first_hash=1000 * number))
    owners = [rig.choose(make_prompt(160, first_hash=1000 * number)) for number in range(99)]
    assert 20 < owners.count("b") < 60


def test_a_lone_hot_prefix_gets_a_second_replica() -> None:
    rig = Rig("preble", "ab")
    hot = make_prompt(1600)
    rig.place("b", make_prompt(16, first_hash=10**6))
    for number in range(100):
        rig.place("a", Prompt(1616, (*hot.block_hashes, 10**8 + number), 16))
    asked = Prompt(1616, (*hot.block_hashes, 10**9), 16)
    assert rig.choose(asked) == "b", "both have it now, and b has less to do"
    rig.put("in_flight", b=1)
    end_of(rig, "b", seconds=60.0)
    assert rig.choose(asked) == "a"
