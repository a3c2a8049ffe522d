"""Bits of replicas: each its own, counted, and used again only once recycled."""

import random

from router.prefix.bits import MAX_NAMED_SETS, ReplicaBits


def test_each_replica_has_a_bit_of_its_own() -> None:
    bits = ReplicaBits()
    given = [bits.bit(f"r{i}") for i in range(100)]
    assert given == [bits.bit(f"r{i}") for i in range(100)]
    assert sum(given) == bits.live
    assert bits.names(given[3] | given[70]) == ("r3", "r70")
    assert bits.names(0) == ()


def test_the_names_of_a_set_follow_a_bit_that_is_given_again() -> None:
    bits = ReplicaBits()
    one = bits.bit("one")
    assert bits.names(one) == ("one",)
    bits.retire("one")
    bits.recycle(bits.take_retired())
    assert bits.names(bits.bit("two")) == ("two",)
    for at in range(20):
        bits.bit(f"r{at}")
    for at in range(3 * MAX_NAMED_SETS):
        assert len(bits.names(at)) == at.bit_count()
    assert len(bits._named_sets) <= MAX_NAMED_SETS


def test_a_retired_bit_is_given_again_only_when_recycled() -> None:
    bits = ReplicaBits()
    one = bits.bit("one")
    bits.retire("one")
    assert (bits.live, bits.take_retired(), bits.retired) == (0, one, 0)
    assert bits.bit("two") != one
    bits.recycle(one)
    assert bits.bit("three") == one
    assert repr(bits) == "2 replicas in 2 bits"


def test_counts_are_those_of_the_replica_and_not_of_the_bit() -> None:
    bits = ReplicaBits()
    one, two = bits.bit("one"), bits.bit("two")
    bits.gain(one, 5)
    bits.gain(two, 2)
    bits.lose(one | two, 1)
    assert (bits.num_blocks("one"), bits.num_blocks("two"), bits.num_blocks("three")) == (4, 1, 0)
    bits.retire("one")
    bits.lose(one | two, 1)
    bits.recycle(bits.take_retired())
    bits.bit("three")
    assert (bits.num_blocks("one"), bits.num_blocks("two"), bits.num_blocks("three")) == (0, 0, 0)


def test_no_two_replicas_ever_share_a_bit() -> None:
    rng, bits, alive, resting = random.Random(1), ReplicaBits(), dict[str, int](), 0
    for turn in range(2000):
        if alive and rng.random() < 0.4:
            name = rng.choice(list(alive))
            bits.retire(name)
            resting |= alive.pop(name)
        elif rng.random() < 0.1:
            resting &= ~(taken := bits.take_retired())
            bits.recycle(taken)
        else:
            bit = bits.bit(f"r{turn}")
            assert bit & (resting | sum(alive.values())) == 0
            alive[f"r{turn}"] = bit
        assert bits.live == sum(alive.values())
