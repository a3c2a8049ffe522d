"""What was learned of replicas, told to other routers and taken from them: speeds, the time to load an adapter, how
much a cache holds. Knows members and what they learn; knows no sockets and no store.

A lesson is what its teller saw itself, never what it was told: else two would confirm each other. It is taken as the
first guess of who has seen little; own samples weigh more soon after. One that is old, absurd, of another model, or of
what the replica was before it was last lost is refused: whoever tells it harms nobody.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from router.replicas.member import Member
from router.replicas.speeds import Source
from router.steps import StepModel

# Samples from which on a model is worth telling; up to how many of one's own it is taken, and stands; beyond how many
# it is as good as any.
ENOUGH_SAMPLES, FEW_SAMPLES, FULL_SAMPLES = 20, 8, 200
ENOUGH_LOADS = 3
# The same replica is told of again after so long, where more was seen of it.
RETELL_S = 10.0
# A replica that a lesson is of may be found, and say what it serves, within so long; of so many it is waited for.
EARLY_S, MOST_EARLY = 60.0, 10_000
MAX_AGE_S = 86400.0
# Routers notice within so long of each other that a replica was lost, and their clocks agree about as well.
SLACK_S = 10.0
# Beyond these nothing is a step of an engine: seconds, of each coefficient.
MOST_S = StepModel(base_s=60.0, token_s=10.0, attention_s=0.1, sequence_s=10.0, context_s=1.0)
MOST_LOAD_S, LEAST_BLOCKS, MOST_BLOCKS = 3600.0, 16, 2**40

log = logging.getLogger(__name__)


class Lesson(msgspec.Struct, frozen=True, array_like=True):
    """`model` is the base model's first name; the teller has watched the replica since `since` without losing it, and
    told this `at`, both in seconds of one clock. Of few samples and few loads the rest says nothing; `capacity_blocks`
    is None where nothing was learned of it."""

    replica_id: str
    model: str
    since: float
    at: float
    step: StepModel
    num_samples: int
    adapter_load_s: float
    num_loads: int
    capacity_blocks: int | None = None

    def beats(self, other: "Lesson | None", now: float) -> bool:
        """Is it the better one to keep? Newer, and of as many samples as count, unless the other is old."""
        if other is None or other.at < now - MAX_AGE_S or self.since > other.since + SLACK_S:
            return True
        return self.at >= other.at and min(self.num_samples, FULL_SAMPLES) >= min(other.num_samples, FULL_SAMPLES)

    def moved(self, by_s: float) -> "Lesson":
        """In seconds of a clock that began so much earlier."""
        return msgspec.structs.replace(self, since=self.since + by_s, at=self.at + by_s)


def fault(lesson: Lesson, now: float) -> str | None:
    """Why it cannot be believed, whatever replica it is of."""
    for name in StepModel.__slots__:
        value, most = getattr(lesson.step, name), getattr(MOST_S, name)
        if not 0.0 < value <= most:  # NaN is not, either
            return f"{name} is {value}"
    if not 0.0 < lesson.adapter_load_s <= MOST_LOAD_S:
        return f"an adapter takes {lesson.adapter_load_s} s"
    if lesson.num_samples < 0 or lesson.num_loads < 0:
        return "it counts less than nothing"
    if lesson.capacity_blocks is not None and not LEAST_BLOCKS <= lesson.capacity_blocks <= MOST_BLOCKS:
        return f"a cache of {lesson.capacity_blocks} blocks"
    if not (math.isfinite(lesson.since) and now - MAX_AGE_S <= lesson.at <= now + SLACK_S):
        return "it is of another time"
    return None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is learned of caches, which is another room's: blocks that a replica is found to hold, None where nothing
    was found out; and what to do with what a sibling found."""

    of: Callable[[str], int | None] = field(default=lambda _: None)
    take: Callable[[str, int], None] = field(default=lambda *_: None)


@dataclass(eq=False, slots=True)
class _Record:
    """Of one member: since when it is watched, what was last told of it and when, and what was taken."""

    since: float
    told: tuple[float, int, int, int | None] = (0.0, 0, 0, None)
    told_at: float = -math.inf
    taken: Lesson | None = None


@dataclass(eq=False, slots=True)
class Lessons:
    """One router's. `due` is asked about once a second; `num_taken` and `num_refused` count lessons."""

    members: Callable[[], Sequence[Member]]
    sizes: Sizes = field(default_factory=Sizes)
    num_taken: int = 0
    num_refused: int = 0
    _records: dict[Member, _Record] = field(default_factory=dict, init=False)
    _logged: set[str] = field(default_factory=set, init=False)
    # Of replicas of which it is not known yet what they serve, and until when they may say so.
    _early: dict[str, tuple[Lesson, float]] = field(default_factory=dict, init=False)

    def due(self, now: float) -> list[Lesson]:
        """What others have not been told of, each replica at most once in `RETELL_S`. What came too early is taken."""
        self._take_early(now)
        members = self.members()
        if len(self._records) > len(members):
            there = set(members)
            self._records = {member: record for member, record in self._records.items() if member in there}
        found = [self._due(member, now) for member in members]
        return [lesson for lesson in found if lesson is not None]

    def all(self, now: float) -> list[Lesson]:
        """What there is to tell, whoever has been told."""
        return [lesson for member in self.members() if (lesson := self._lesson(member, now)) is not None]

    def wanting(self) -> list[Member]:
        """Those of which we know less than a sibling may."""
        return [
            member
            for member in self.members()
            if member.identity is not None
            and member.speeds.num_own <= FEW_SAMPLES
            and not member.speeds.is_contradicted
            and member.speeds.source is not Source.SIBLING
        ]

    def take(self, lessons: Iterable[Lesson], now: float) -> None:
        """Each where it teaches us anything; of a replica that we do not know, once we do."""
        members = {member.replica.id: member for member in self.members()}
        taken = []
        for lesson in lessons:
            member = members.get(lesson.replica_id)
            if member is None or member.identity is None:
                if len(self._early) < MOST_EARLY:
                    self._early.setdefault(lesson.replica_id, (lesson, now + EARLY_S))
                continue
            if (wrong := fault(lesson, now) or self._mismatch(lesson, member)) is not None:
                self.refuse(f"what a sibling learned of {lesson.replica_id} is not believed: {wrong}")
            elif self._learn(lesson, member, self._record(member, now)):
                taken.append(lesson.replica_id)
        if taken:
            self.num_taken += len(taken)
            log.info("a sibling's speeds are taken over", extra={"fields": {"replicas": taken}})

    def refuse(self, reason: str) -> None:
        """Each reason is logged once."""
        self.num_refused += 1
        if reason not in self._logged and len(self._logged) < 1000:
            self._logged.add(reason)
            log.warning(reason)

    def _due(self, member: Member, now: float) -> Lesson | None:
        record = self._record(member, now)
        if now < record.told_at + RETELL_S:
            return None
        lesson = self._lesson(member, now)
        if lesson is None:
            return None
        news = (member.lost_at, lesson.num_samples, lesson.num_loads, lesson.capacity_blocks)
        if news == record.told:
            return None
        record.told, record.told_at = news, now
        return lesson

    def _lesson(self, member: Member, now: float) -> Lesson | None:
        """None where too little was seen."""
        replica, speeds, residency = member.replica, member.speeds, member.residency
        size = self.sizes.of(replica.id)
        is_enough = speeds.num_own >= ENOUGH_SAMPLES or residency.num_loads >= ENOUGH_LOADS or size is not None
        if member.identity is None or not is_enough:
            return None
        return Lesson(
            replica_id=replica.id,
            model=replica.models[0],
            since=max(self._record(member, now).since, member.lost_at),
            at=now,
            step=speeds.step,
            num_samples=speeds.num_own,
            adapter_load_s=residency.load_s,
            num_loads=residency.num_loads,
            capacity_blocks=size,
        )

    def _take_early(self, now: float) -> None:
        early, self._early = self._early, {}
        due = [lesson for lesson, until in early.values() if now < until]
        if due:
            self.take(due, now)
            for id in self._early:
                self._early[id] = early[id]

    def _record(self, member: Member, now: float) -> _Record:
        record = self._records.get(member)
        if record is None:
            record = self._records[member] = _Record(now)
        return record

    def _mismatch(self, lesson: Lesson, member: Member) -> str | None:
        if lesson.model not in member.replica.models[:1]:
            return f"it is of the model {lesson.model}"
        if lesson.since + SLACK_S < member.lost_at:
            return "the replica was lost since"
        return None

    def _learn(self, lesson: Lesson, member: Member, record: _Record) -> bool:
        """Was its speed what we knew too little of?"""
        if lesson.num_loads >= ENOUGH_LOADS and member.residency.num_loads < ENOUGH_LOADS:
            member.residency.load_s = member.replica.adapter_load_s = lesson.adapter_load_s
        if lesson.capacity_blocks is not None:
            self.sizes.take(lesson.replica_id, lesson.capacity_blocks)
        if lesson.num_samples < ENOUGH_SAMPLES or not self._is_news(lesson, member, record):
            return False
        is_first = member.speeds.source is not Source.SIBLING
        record.taken = lesson
        member.speeds.take_over(lesson.step, FEW_SAMPLES)
        member.take_in_speeds()
        return is_first

    def _is_news(self, lesson: Lesson, member: Member, record: _Record) -> bool:
        """What was taken is replaced by better only until there are samples of our own beside it."""
        if member.speeds.source is Source.SIBLING:
            return not member.speeds.num_own and lesson.beats(record.taken, lesson.at)
        return member.speeds.num_own <= FEW_SAMPLES and not member.speeds.is_contradicted

    def __repr__(self) -> str:
        return f"<Lessons {self.num_taken} taken, {self.num_refused} refused>"
