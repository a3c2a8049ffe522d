"""EXACT, APPROXIMATE or BLIND, and what is learned from answers: sizes, wrong tokenizers, feeds of others."""

from collections.abc import Sequence

import pytest

from pointsman.blockhash import block_hashes
from router.core import Decision, Lease, Outcome, Pool, Prompt, Replica, Usage
from router.prefix.follower import FeedState, FeedStatus
from router.prefix.index import BlockIndex
from router.prefix.knowledge import CONFIRM_S, MIN_CAPACITY_BLOCKS, SIBLING_S, Knowing, Knowledge
from router.prefix.trust import NUM_AGAINST, NUM_FOR
from tests.router.nouns import make_demand, make_replica

SIZE = 16
SYNCED = FeedStatus(FeedState.SYNCED)


class Rig:
    """A pool with one replica, and the requests that it answers."""

    def __init__(self, *, has_tokenizer: bool = True) -> None:
        self.index = BlockIndex(2**22)
        self.knowledge = Knowledge(self.index, lambda _: has_tokenizer)
        self.pool = Pool("m", SIZE)
        self.replica: Replica = make_replica("a", pool=self.pool)
        self.now = 100.0

    def send(self, hashes: Sequence[int], matched: int = 0, *, is_exact: bool = True) -> Lease:
        """A prompt of these whole blocks is dispatched; so many of its tokens should be cached."""
        self.index.insert("a", hashes)
        prompt = Prompt(len(hashes) * SIZE, hashes, SIZE, is_exact=is_exact)
        demand = make_demand(pool=self.pool, prompt=prompt)
        decision = Decision(self.replica, "p", matched, prompt.num_tokens - matched, 0.0, {})
        return Lease(demand, decision, self.now, lambda _: None, lambda _: None)

    def answer(self, lease: Lease, cached: int | None, prompt_tokens: int | None = None) -> None:
        lease.start()
        lease.release(Outcome.OK)
        num_tokens = lease.demand.prompt.num_tokens if prompt_tokens is None else prompt_tokens
        self.knowledge.answered(lease, Usage(prompt_tokens=num_tokens, cached_tokens=cached), self.now)

    def turn(self, hashes: Sequence[int], expected: int, reported: int | None, **fields: int) -> None:
        self.answer(self.send(hashes, expected), reported, **fields)

    def sweep(self, seconds: float) -> None:
        self.now += seconds
        self.knowledge.sweep(self.now, {"a"})

    def knowing(self) -> Knowing:
        return self.knowledge.of(self.replica).knowing

    @property
    def reason(self) -> str:
        return self.knowledge.of(self.replica).reason


def chain(num_blocks: int, first: int = 0) -> list[int]:
    return block_hashes(range(first, first + num_blocks * SIZE), SIZE)


def test_each_replica_says_how_well_it_is_known_and_why_not_better() -> None:
    rig = Rig()
    assert rig.knowing() is Knowing.APPROXIMATE
    assert rig.reason == "KV events are absent"
    rig.knowledge.told("a", FeedStatus(FeedState.SYNCING, "it begins"))
    assert (rig.knowing(), rig.reason) == (Knowing.APPROXIMATE, "it begins")
    rig.knowledge.told("a", SYNCED)
    assert (rig.knowing(), rig.reason) == (Knowing.EXACT, "")
    rig.knowledge.told("a", FeedStatus(FeedState.DISTRUSTED, "it lies"))
    assert (rig.knowing(), rig.reason) == (Knowing.APPROXIMATE, "it lies")
    blind = Rig(has_tokenizer=False)
    blind.knowledge.told("a", SYNCED)
    assert blind.knowing() is Knowing.BLIND
    assert "no tokenizer" in blind.reason
    assert Rig().knowledge.of(make_replica("new")).knowing is Knowing.BLIND


def test_a_feed_that_was_joined_late_is_exact_once_answers_bear_it_out() -> None:
    rig = Rig()
    rig.knowledge.told("a", FeedStatus(FeedState.LATE, "no replay"))
    for _ in range(NUM_FOR):
        assert (rig.knowing(), rig.reason) == (Knowing.APPROXIMATE, "no replay")
        rig.turn(chain(10), 8 * SIZE, 8 * SIZE)
    assert rig.knowing() is Knowing.EXACT


def test_nothing_expected_and_nothing_found_is_no_evidence() -> None:
    rig = Rig()
    rig.knowledge.told("a", FeedStatus(FeedState.LATE, "no replay"))
    for at in range(10):
        rig.turn(chain(4, 1000 * at), 0, 0)
    assert rig.knowing() is Knowing.APPROXIMATE


def test_a_tokenizer_that_is_not_the_engine_s_is_noticed_by_the_length_of_prompts() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    for at in range(NUM_AGAINST):
        assert rig.knowing() is Knowing.EXACT
        rig.turn(chain(4, 1000 * at), 0, 0, prompt_tokens=70)
    assert rig.knowing() is Knowing.APPROXIMATE
    assert rig.reason == "the tokenizer is not the engine's: 64 tokens counted, 70 reported"


@pytest.mark.parametrize(("expected", "reported"), [(8, 0), (0, 8), (8, 6)])
def test_a_cache_that_is_not_what_events_say_is_noticed_by_cached_tokens(expected: int, reported: int) -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    for _ in range(NUM_AGAINST):
        assert rig.knowing() is Knowing.EXACT
        rig.turn(chain(10), expected * SIZE, reported * SIZE)
    assert rig.knowing() is Knowing.APPROXIMATE
    assert f"{expected * SIZE} tokens expected in its cache, {reported * SIZE} reported" in rig.reason
    for _ in range(NUM_FOR):
        rig.turn(chain(10), 8 * SIZE, 7 * SIZE)
    assert rig.knowing() is Knowing.EXACT


def test_the_feed_of_another_replica_is_noticed_as_it_does_not_tell_of_what_was_sent() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    for at in range(NUM_AGAINST):
        rig.turn(chain(4, 1000 * at), 0, None)
        assert rig.index.match(chain(4, 1000 * at)) == {"a": 4}
    rig.sweep(CONFIRM_S - 0.1)
    assert rig.knowing() is Knowing.EXACT
    rig.sweep(0.2)
    assert rig.knowing() is Knowing.APPROXIMATE
    assert rig.reason == "its KV events do not tell of what was sent there"
    assert rig.index.num_blocks("a") == 0


def test_a_guess_that_came_true_stays_and_one_that_did_not_is_taken_back_in_time() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    rig.turn(chain(4), 0, 0)
    rig.turn(chain(4, 1000), 0, 0)
    rig.index.store("a", None, chain(4))
    rig.sweep(CONFIRM_S + 1)
    assert rig.index.match(chain(4)) == {"a": 4}
    assert rig.index.match(chain(4, 1000)) == {}


def test_a_request_that_failed_leaves_no_guess_and_what_was_there_before_stays() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    rig.index.store("a", None, chain(2))
    lease = rig.send(chain(6), matched=2 * SIZE)
    assert rig.index.match(chain(6)) == {"a": 6}
    lease.release(Outcome.UPSTREAM_FAILED)
    rig.knowledge.failed(lease, rig.now)
    assert rig.index.match(chain(6)) == {"a": 2}


def test_without_events_a_failed_request_takes_back_only_what_it_added() -> None:
    rig = Rig()
    rig.turn(chain(3), 0, 0)
    lease = rig.send(chain(8), matched=3 * SIZE)
    lease.release(Outcome.CLIENT_GONE)
    rig.knowledge.failed(lease, rig.now)
    assert rig.index.match(chain(8)) == {"a": 3}


def test_a_request_that_was_cut_after_its_first_token_may_have_left_its_prompt() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    lease = rig.send(chain(4))
    lease.start()
    lease.release(Outcome.CLIENT_GONE)
    rig.knowledge.failed(lease, rig.now)
    assert rig.index.match(chain(4)) == {"a": 4}
    rig.sweep(SIBLING_S + 1)
    assert rig.index.match(chain(4)) == {}


def test_what_a_sibling_sent_is_a_guess_with_an_end() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    rig.index.insert("a", chain(4))
    rig.knowledge.dispatched_elsewhere("a", chain(4), rig.now)
    rig.turn(chain(2, 1000), 0, None)
    rig.sweep(CONFIRM_S + 1)
    assert rig.index.match(chain(4)) == {"a": 4}
    rig.sweep(SIBLING_S)
    assert rig.index.match(chain(4)) == {}


def test_without_events_a_replica_is_modelled_with_the_size_that_it_says() -> None:
    rig = Rig()
    rig.replica.kv_capacity_tokens = 40 * SIZE
    rig.knowledge.identified(rig.replica)
    for at in range(10):
        rig.turn(chain(8, 1000 * at), 0, 0)
    assert rig.index.num_blocks("a") == 40
    assert rig.index.match(chain(8)) == {}
    rig.knowledge.told("a", SYNCED)
    rig.turn(chain(8), 0, 0)
    assert rig.index.num_blocks("a") == 48
    rig.knowledge.told("a", FeedStatus(FeedState.ABSENT, "gone"))
    assert rig.index.capacity("a") == 40


def test_a_cache_that_misses_what_should_be_there_is_smaller_than_it_said() -> None:
    rig = Rig()
    rig.replica.kv_capacity_tokens = 200 * SIZE
    rig.knowledge.identified(rig.replica)
    for at in range(20):
        rig.turn(chain(8, 1000 * at), 0, 0)
    rig.turn(chain(8), 8 * SIZE - 1, 0)
    learned = rig.index.capacity("a")
    assert learned is not None
    assert learned < 160
    for _ in range(200):
        rig.turn(chain(8, 19_000), 8 * SIZE - 1, 0)
    assert rig.index.capacity("a") == MIN_CAPACITY_BLOCKS


def test_a_cache_that_holds_what_was_expected_is_larger_again_up_to_its_own_word() -> None:
    rig = Rig()
    rig.replica.kv_capacity_tokens = 100 * SIZE
    rig.knowledge.identified(rig.replica)
    rig.index.limit("a", 20)
    for at in range(200):
        rig.turn(chain(19, 1000 * (at % 12)), 19 * SIZE - 1, 18 * SIZE)
    assert rig.index.capacity("a") == 100


def test_a_size_is_learned_even_where_none_was_said() -> None:
    rig = Rig()
    for at in range(20):
        rig.turn(chain(8, 1000 * at), 0, 0)
    assert rig.index.capacity("a") is None
    rig.turn(chain(8), 8 * SIZE - 1, 0)
    assert rig.index.capacity("a") == 144


def test_expected_and_reported_reuse_are_counted() -> None:
    rig = Rig()
    rig.turn(chain(8), 64, 48)
    rig.turn(chain(8), 64, 64)
    reuse = rig.knowledge.reuse()["a"]
    assert (reuse.expected_tokens, reuse.reported_tokens) == (128, 112)


def test_guessed_lengths_are_no_evidence() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    for _ in range(10):
        rig.answer(rig.send(chain(4), is_exact=False), 0, prompt_tokens=999)
    assert rig.knowing() is Knowing.EXACT
    assert rig.knowledge.reuse() == {}


def test_a_probe_that_found_other_tokens_downgrades_at_once_and_one_that_agrees_lifts_it() -> None:
    rig = Rig()
    rig.knowledge.told("a", SYNCED)
    rig.knowledge.probed("a", "its own /tokenize gives other tokens")
    assert (rig.knowing(), rig.reason) == (Knowing.APPROXIMATE, "its own /tokenize gives other tokens")
    rig.knowledge.probed("a", None)
    assert rig.knowing() is Knowing.EXACT


def test_a_replica_that_came_back_is_modelled_anew_and_one_that_is_gone_is_forgotten() -> None:
    rig = Rig()
    rig.replica.kv_capacity_tokens = 40 * SIZE
    rig.knowledge.identified(rig.replica)
    rig.index.remove("a")
    rig.knowledge.forget("a")
    assert rig.index.capacity("a") is None
    rig.sweep(1)
    assert rig.index.capacity("a") == 40
    rig.turn(chain(4), 16, 16)
    rig.index.remove("a")
    rig.knowledge.sweep(rig.now, set())
    assert rig.index.capacity("a") is None
    assert rig.knowledge.reuse() == {}
    assert "0 feeds" in repr(rig.knowledge)


def test_what_a_cache_was_found_to_hold_is_for_siblings_to_know_who_found_nothing_out() -> None:
    rig, other, told = Rig(), Rig(), Rig()
    for at in range(20):
        rig.turn(chain(8, 1000 * at), 0, 0)
    assert rig.knowledge.learned_size("a") is None
    rig.turn(chain(8), 8 * SIZE - 1, 0)
    assert rig.knowledge.learned_size("a") == 144
    other.knowledge.take_size("a", 144)
    assert other.index.capacity("a") == 144
    assert other.knowledge.learned_size("a") is None, "it has not found that out itself"
    told.knowledge.told("a", SYNCED)
    told.knowledge.take_size("a", 144)
    assert told.index.capacity("a") is None, "it says itself what it holds"
    rig.knowledge.take_size("a", 500)
    assert rig.index.capacity("a") == 144
    rig.knowledge.forget("a")
    assert rig.knowledge.learned_size("a") is None
