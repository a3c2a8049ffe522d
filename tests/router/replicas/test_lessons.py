"""What routers tell each other of replicas: taken where little was seen, never instead of what was; refused where it is
absurd, old, or of something else."""

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.replicas.lessons import (
    EARLY_S,
    ENOUGH_SAMPLES,
    FEW_SAMPLES,
    MAX_AGE_S,
    RETELL_S,
    Lesson,
    Lessons,
    Sizes,
    fault,
)
from router.replicas.member import Member
from router.replicas.speeds import Source
from router.steps import StepModel
from tests.router.replicas.fakes import make_identity, make_member

FAST = StepModel(base_s=0.0167, token_s=7.25e-5, attention_s=1e-9, sequence_s=4e-5, context_s=4.76e-8)
SLOW = StepModel(*(10.0 * of for of in astuple(FAST)))


def make_lesson(**fields: Any) -> Lesson:
    usual: dict[str, Any] = {"replica_id": "a", "model": "m", "since": 0.0, "at": 100.0, "step": FAST}
    return Lesson(**(usual | {"num_samples": 300, "adapter_load_s": 0.05, "num_loads": 0} | fields))


def see(member: Member, step: StepModel, times: int, start: float = 0.0) -> None:
    """So many first tokens of a replica that is so fast."""
    for number in range(times):
        num_tokens, at = 500 + 100 * (number % 7), start + 100.0 * number
        took_s = step.base_s + step.prefill_s(num_tokens, num_tokens)
        # The one before it is learned with the next.
        member.speeds.began(at + took_s, at, num_tokens, num_tokens, 0, 0)
    member.take_in_speeds()


def of(*members: Member, sizes: Sizes | None = None) -> Lessons:
    return Lessons(lambda: members, sizes or Sizes())


def speed(member: Member) -> float:
    return member.replica.prefill_tokens_per_s


def test_a_sibling_knows_at_once_what_one_has_learned_and_goes_on_by_itself() -> None:
    teller, taker = make_member(), make_member()
    see(teller, SLOW, ENOUGH_SAMPLES + 5)
    lessons, siblings = of(teller), of(taker)
    told = lessons.due(10.0)
    siblings.take(told, 10.0)
    assert taker.replica.step == teller.replica.step
    assert (teller.speeds.source, taker.speeds.source) == (Source.OWN, Source.SIBLING)
    assert taker.speeds.num_own == 0
    assert siblings.num_taken == 1
    assert siblings.due(30.0) == [], "what it was told it does not tell"
    see(taker, FAST, 100)
    assert taker.speeds.source is Source.OWN
    assert speed(taker) == pytest.approx(1 / FAST.token_s, rel=0.35), "own samples win"


def test_own_samples_are_never_given_up_for_a_siblings() -> None:
    member = make_member()
    see(member, SLOW, FEW_SAMPLES + 2)
    before = member.replica.step
    of(member).take([make_lesson()], 100.0)
    assert member.replica.step is before
    assert member.speeds.source is Source.OWN


def test_what_was_taken_is_replaced_by_better_until_something_was_seen_here() -> None:
    member = make_member()
    lessons = of(member)
    lessons.take([make_lesson(num_samples=50)], 100.0)
    lessons.take([make_lesson(num_samples=30, step=SLOW)], 100.0)
    assert member.replica.step == FAST, "of fewer samples"
    lessons.take([make_lesson(num_samples=500, at=101.0, step=SLOW)], 101.0)
    assert member.replica.step == SLOW
    assert lessons.num_taken == 1, "it is one replica"
    see(member, SLOW, 3)
    before = member.replica.step
    lessons.take([make_lesson(num_samples=900, at=102.0)], 102.0)
    assert member.replica.step is before


def test_a_lesson_of_few_samples_teaches_nothing() -> None:
    member = make_member()
    of(member).take([make_lesson(num_samples=ENOUGH_SAMPLES - 1)], 100.0)
    assert member.speeds.source is Source.PRIOR


def test_each_replica_is_told_of_at_most_once_in_a_while_and_only_where_more_was_seen() -> None:
    member, other = make_member(), make_member("b")
    lessons = of(member, other)
    see(member, FAST, ENOUGH_SAMPLES - 2)
    assert lessons.due(1.0) == [], "too few samples"
    see(member, FAST, 10, start=1e4)
    assert [lesson.replica_id for lesson in lessons.due(2.0)] == ["a"]
    see(member, FAST, 10, start=2e4)
    assert lessons.due(3.0) == [], "a moment ago"
    assert [lesson.num_samples for lesson in lessons.due(2.0 + RETELL_S)] == [member.speeds.num_own]
    assert lessons.due(99.0) == [], "nothing is new"


def test_a_lesson_of_a_replica_that_says_later_what_it_serves_is_taken_then() -> None:
    late, never = make_member(), make_member("b")
    late.identity = never.identity = None
    lessons = of(late, never)
    lessons.take([make_lesson(replica_id=id) for id in "abz"], 100.0)
    lessons.due(100.0 + 0.5 * EARLY_S)
    assert lessons.num_taken == 0
    late.identify(make_identity("m"), 0.0)
    lessons.due(100.0 + 0.9 * EARLY_S)
    assert late.speeds.source is Source.SIBLING
    lessons.due(100.0 + 1.1 * EARLY_S)
    never.identify(make_identity("m"), 0.0)
    lessons.due(100.0 + 1.2 * EARLY_S)
    assert never.speeds.source is Source.PRIOR, "it was not waited for so long"
    assert (lessons.num_taken, lessons.num_refused) == (1, 0)


def test_all_that_was_learned_is_there_for_who_asks_whoever_has_been_told() -> None:
    member, other = make_member(), make_member("b")
    see(member, FAST, 40)
    lessons = of(member, other)
    assert lessons.all(1.0) == lessons.due(1.0) == lessons.all(1.0)
    assert [lesson.replica_id for lesson in lessons.all(1.0)] == ["a"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"step": replace(FAST, token_s=math.nan)}, "token_s is nan"),
        ({"step": replace(FAST, base_s=-1.0)}, "base_s is -1.0"),
        ({"step": replace(FAST, context_s=0.0)}, "context_s is 0.0"),
        ({"step": replace(FAST, sequence_s=math.inf)}, "sequence_s is inf"),
        ({"step": replace(FAST, attention_s=5.0)}, "attention_s is 5.0"),
        ({"adapter_load_s": math.nan}, "an adapter takes nan s"),
        ({"adapter_load_s": 1e9}, "an adapter takes 1000000000.0 s"),
        ({"num_samples": -1}, "less than nothing"),
        ({"capacity_blocks": 0}, "a cache of 0 blocks"),
        ({"since": math.nan}, "another time"),
        ({"at": -MAX_AGE_S}, "another time"),
        ({"at": 1e6}, "another time"),
        ({"at": math.nan}, "another time"),
        ({"model": "other"}, "the model other"),
        ({"model": ""}, "the model "),
    ],
)
def test_what_cannot_be_is_refused_and_said_once(
    wrong: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    member = make_member()
    lessons = of(member)
    for _ in range(3):
        lessons.take([make_lesson(**wrong)], 100.0)
    assert member.replica.step == StepModel()
    assert (lessons.num_taken, lessons.num_refused) == (0, 3)
    (line,) = caplog.messages
    assert words in line


def test_a_replica_that_was_lost_is_learned_anew_and_older_lessons_do_not_count() -> None:
    """What it was is the first guess; what a sibling has learned since is taken."""
    member = make_member()
    see(member, SLOW, 60)
    lessons = of(member)
    assert lessons.due(200.0)
    member.lose(1000.0)
    assert member.speeds.source is Source.PRIOR
    assert member.speeds.num_own == 0
    assert member.speeds.step == member.replica.step
    lessons.take([make_lesson(since=500.0, at=1001.0)], 1001.0)
    assert member.speeds.source is Source.PRIOR
    assert lessons.num_refused == 1
    lessons.take([make_lesson(since=1002.0, at=1050.0)], 1050.0)
    assert member.replica.step == FAST
    see(member, FAST, ENOUGH_SAMPLES + 1, start=2000.0)
    (told,) = lessons.due(5000.0)
    assert told.since == 1000.0, "who has not heard of the loss does not mistake it for the old one"


def test_another_model_at_the_same_address_is_another_replica() -> None:
    member = make_member()
    see(member, SLOW, 60)
    member.forget_speeds()
    assert member.replica.step == StepModel()
    member.identify(make_identity("n"), 1.0)
    lessons = of(member)
    lessons.take([make_lesson()], 100.0)
    assert member.replica.step == StepModel()


def test_how_long_adapters_load_is_told_and_taken_alike() -> None:
    teller, taker = make_member(), make_member()
    for _ in range(40):
        teller.residency.learn(2.0)
    told = of(teller).due(100.0)
    of(taker).take(told, 100.0)
    assert taker.replica.adapter_load_s == taker.residency.load_s == teller.residency.load_s > 1.0
    assert taker.speeds.source is Source.PRIOR, "nothing was learned of steps"
    teller.lose(200.0)
    assert teller.residency.num_loads == 0


def test_what_a_cache_was_found_to_hold_is_told_and_taken() -> None:
    taken: list[tuple[str, int]] = []
    told = of(make_member(), sizes=Sizes(lambda _: 800)).due(100.0)
    of(make_member(), sizes=Sizes(take=lambda *each: taken.append(each))).take(told, 100.0)
    assert taken == [("a", 800)]


def test_those_of_which_too_little_is_known_are_wanted() -> None:
    new, seen, told, unknown = (make_member(name) for name in "abcd")
    unknown.identity = None
    see(seen, FAST, 40)
    lessons = of(new, seen, told, unknown)
    lessons.take([make_lesson(replica_id="c")], 100.0)
    assert lessons.wanting() == [new]


def test_a_lesson_outlives_the_wire() -> None:
    lesson = make_lesson(capacity_blocks=700)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(lesson), type=Lesson) == lesson


WILD = st.floats(allow_nan=True, allow_infinity=True)
STEPS = st.builds(StepModel, WILD, WILD, WILD, WILD, WILD)
WILD_LESSONS = st.builds(
    Lesson, st.sampled_from("abc"), st.sampled_from("mn"), WILD, WILD, STEPS, st.integers(), WILD, st.integers()
)


@settings(max_examples=200, deadline=None)
@given(st.lists(WILD_LESSONS | st.builds(make_lesson, replica_id=st.sampled_from("abc"), step=STEPS), max_size=8))
def test_whatever_is_told_speeds_stay_finite_and_above_zero(told: Sequence[Lesson]) -> None:
    members = [make_member(name) for name in "ab"]
    of(*members).take(told, 100.0)
    for member in members:
        see(member, FAST, 4)
        assert all(math.isfinite(each) and each > 0.0 for each in astuple(member.replica.step))


def test_over_random_lives_of_a_fleet_nobody_is_taught_by_an_echo_and_all_come_to_the_truth() -> None:
    """Routers see, tell, are restarted and lose replicas in any order. What is told was seen by its teller."""
    dice = Random(3)
    for _ in range(20):
        routers = [of(make_member("a"), make_member("b")) for _ in range(3)]
        now = 0.0
        for _ in range(120):
            now += dice.uniform(1.0, 20.0)
            at = dice.randrange(3)
            member = dice.choice(routers[at].members())
            match dice.randrange(8):
                case 0:
                    member.lose(now)
                case 1:
                    routers[at] = of(make_member("a"), make_member("b"))
                case _:
                    see(member, SLOW, dice.randrange(20), start=1e4 * now)
            for teller in routers:
                told = teller.due(now)
                by_id = {each.replica.id: each for each in teller.members()}
                for lesson in told:
                    assert fault(lesson, now) is None
                    assert lesson.num_samples == by_id[lesson.replica_id].speeds.num_own >= ENOUGH_SAMPLES
                for taker in routers:
                    if taker is not teller:
                        taker.take(told, now)
        for router in routers:
            for member in router.members():
                see(member, SLOW, 40, start=1e8)
                assert speed(member) == pytest.approx(1 / SLOW.token_s, rel=0.4)


def test_who_found_a_siblings_lesson_to_be_wrong_takes_no_more_of_that_replica() -> None:
    member = make_member()
    lessons = of(member)
    lessons.take([make_lesson(step=StepModel(*(0.02 * of for of in astuple(FAST))))], 100.0)
    see(member, FAST, 6)
    assert member.speeds.is_contradicted
    assert lessons.wanting() == []
    before = member.speeds.step
    lessons.take([make_lesson(at=101.0, num_samples=900)], 101.0)
    assert member.speeds.step is before
