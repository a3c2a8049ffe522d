import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from router.core import Replica, ReplicaState
from router.errors import UpstreamError
from router.ports import Clock
from router.replicas.breaker import Breaker
from router.replicas.distance import NUM_SAMPLES
from router.replicas.fetch import open_session
from router.replicas.identify import Identity, TokenizerDocument
from router.replicas.member import Member
from router.replicas.watch import Pace, Watch
from tests.router.nouns import FakeClock
from tests.router.replicas.fakes import FakeReplica, Wakes

OUR_PAGE = "vllm:num_requests_running 4\nvllm:num_requests_waiting 6\npointsman_engine_queued_prefill_tokens 500\n"
VLLM_PAGE = 'vllm:num_requests_running 1\nvllm:cache_config_info{block_size="64"} 1\n'


@dataclass(eq=False)
class Hearer(Wakes):
    """Does to a member what the registry would, and writes it down."""

    log: list[str] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)

    def __post_init__(self) -> None:
        Wakes.__init__(self)

    def good(self, member: Member) -> None:
        member.health.pass_probe()
        self.note("good")

    def bad(self, member: Member, error: UpstreamError) -> None:
        self.note(f"bad: {error.message}")

    def identified(self, member: Member, identity: Identity, document: TokenizerDocument | None) -> None:
        if "broken" in identity.models:
            raise ValueError("a tokenizer that nobody can read")
        member.identify(identity, time.monotonic())
        self.identities.append(identity)
        self.note("identified")

    def relisted(self, member: Member) -> None:
        self.note("relisted")

    def lighter(self) -> None:
        self.note("lighter")

    def note(self, words: str) -> None:
        self.log.append(words)
        self.wake()


@asynccontextmanager
async def watching(
    replica: FakeReplica, hearer: Hearer, clock: Clock = time.monotonic, rtt_s: float | None = None, **pace: float
) -> AsyncIterator[Member]:
    member = Member(Replica(dataclasses.replace(replica.spec, round_trip_s=rtt_s)), Breaker())
    fast = Pace(**{"probe_interval_s": 0.01, "load_interval_s": 0.01, **pace})
    async with open_session() as session, asyncio.TaskGroup() as group:
        watch = Watch(
            session,
            group,
            fast,
            clock,
            on_good=hearer.good,
            on_bad=hearer.bad,
            on_identified=hearer.identified,
            on_relisted=hearer.relisted,
            on_lighter=hearer.lighter,
        )
        watch.start(member)
        try:
            yield member
        finally:
            watch.stop(member)


async def test_a_replica_is_identified_before_its_first_good_probe_and_not_again() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer):
        await hearer.until(lambda: len(hearer.log) >= 4)
    assert hearer.log[:4] == ["identified", "good", "good", "good"]


async def test_a_replica_that_cannot_be_identified_is_not_good() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer):
        replica.answers["/v1/models"] = (500, "")
        await hearer.until(lambda: len(hearer.log) >= 2)
    assert hearer.log == [f"bad: {replica.id}/v1/models answered with status 500"] * len(hearer.log)


async def test_a_replica_whose_answer_breaks_us_does_not_end_the_watch() -> None:
    hearer = Hearer()
    async with FakeReplica("broken") as replica, watching(replica, hearer):
        await hearer.until(lambda: len(hearer.log) >= 2)
        replica.serve("m", adapters={})
        await hearer.until(lambda: "good" in hearer.log)
    assert hearer.log[0] == f"bad: cannot make out what {replica.id} serves"


async def test_the_block_size_comes_from_the_metrics_where_the_engine_says_it_there() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer):
        replica.answers["/metrics"] = (200, VLLM_PAGE)
        await hearer.until(lambda: "good" in hearer.log)
    assert hearer.identities[0].block_size == 64


async def test_how_far_away_a_replica_is_is_known_before_it_is_said_to_be_good() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer, distance_interval_s=0.0) as member:
        await hearer.until(lambda: "good" in hearer.log)
        assert member.distance.round_trip_s is not None
        await hearer.until(lambda: len(member.distance.samples_s) == NUM_SAMPLES)


async def test_what_the_operator_says_of_the_way_is_not_measured() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer, rtt_s=0.08, distance_interval_s=0.0) as member:
        await hearer.until(lambda: hearer.log.count("good") == 3)
        assert not member.distance.samples_s
        assert member.replica.round_trip_s == 0.08


async def test_a_suspect_replica_is_probed_at_once() -> None:
    """A request's failure wakes the probe: with an hour between probes, the next one can only come of that."""
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer, probe_interval_s=3600.0) as member:
        await hearer.until(lambda: hearer.log.count("good") == 1)
        member.wants_probe.set()
        await hearer.until(lambda: hearer.log.count("good") == 2)


async def test_adapters_loaded_later_are_heard_of() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer, models_interval_s=0.01) as member:
        await hearer.until(lambda: "good" in hearer.log)
        replica.serve("m", adapters={"sql": "m"})
        await hearer.until(lambda: "relisted" in hearer.log)
        assert member.replica.adapters == {"sql"}


async def test_another_base_model_under_the_same_address_is_identified_anew() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer, models_interval_s=0.01) as member:
        await hearer.until(lambda: "good" in hearer.log)
        replica.serve("other", adapters={})
        await hearer.until(lambda: len(hearer.identities) == 2)
        assert member.replica.models == ("other",)


async def test_a_model_list_that_fails_later_is_no_bad_probe() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer, models_interval_s=0.01):
        await hearer.until(lambda: "good" in hearer.log)
        replica.answers["/v1/models"] = (500, "")
        await replica.until_asked("/v1/models", times=3)
    assert set(hearer.log) == {"identified", "good"}


async def test_load_is_polled_and_what_is_not_ours_is_foreign() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica:
        replica.answers["/metrics"] = (200, OUR_PAGE)
        async with watching(replica, hearer) as member:
            await replica.until_asked("/metrics", times=4)
            assert member.replica.load is not None
            assert (member.replica.load.running, member.replica.load.waiting) == (4, 6)
            assert (member.replica.foreign_requests, member.replica.foreign_tokens) == (10, 500)
            replica.answers["/metrics"] = (200, OUR_PAGE.replace("6", "1"))
            await hearer.until(lambda: "lighter" in hearer.log)
            assert member.replica.foreign_requests == 5


async def test_a_report_that_is_not_renewed_ages_out() -> None:
    """Pitfall: polled load is stale for seconds. A report ages out."""
    hearer = Hearer()
    async with FakeReplica("m") as replica:
        replica.answers["/metrics"] = (200, OUR_PAGE)
        clock = FakeClock()
        async with watching(replica, hearer, clock, load_max_age_s=5.0) as member:
            await replica.until_asked("/metrics", times=4)
            replica.answers["/metrics"] = (500, "")
            await replica.until_asked("/metrics", times=2)
            assert member.replica.foreign_requests == 10
            clock.now += 5.1
            await hearer.until(lambda: "lighter" in hearer.log)
            assert (member.replica.load, member.replica.foreign_requests) == (None, 0)


async def test_a_replica_without_metrics_keeps_no_load_and_is_not_asked_in_vain() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer) as member:
        await hearer.until(lambda: hearer.log.count("good") == 5)
        assert replica.asked["/metrics"] == 1
        assert member.replica.load is None


async def test_metrics_that_appear_later_are_found() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica, watching(replica, hearer, models_interval_s=0.01) as member:
        await hearer.until(lambda: "good" in hearer.log)
        replica.answers["/metrics"] = (200, OUR_PAGE)
        await replica.until_asked("/metrics", times=4)
        assert member.replica.load is not None


async def test_a_draining_replica_is_still_watched() -> None:
    hearer = Hearer()
    async with FakeReplica("m") as replica:
        replica.answers["/metrics"] = (200, OUR_PAGE)
        async with watching(replica, hearer) as member:
            await hearer.until(lambda: "good" in hearer.log)
            member.replica.state = ReplicaState.DRAINING
            await replica.until_asked("/metrics", times=3)
            await replica.until_asked("/health", times=3)
