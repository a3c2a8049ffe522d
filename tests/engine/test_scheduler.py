from random import Random

import pytest

from engine.adapters import UnknownAdapter
from engine.batch import Batch
from engine.scheduler import Scheduler
from engine.sequence import FinishReason, Request, Sequence, SequenceState
from tests.engine.requests import BLOCK_SIZE, add_adapters, next_number, request, scheduler


def step(queue: Scheduler) -> Batch:
    """Computes the next batch; each sequence ends at its limit."""
    batch = queue.schedule()
    for chunk in batch.chunks:
        samples = chunk.samples
        queue.computed(chunk)
        if samples:
            chunk.sequence.tokens.append(next_number(chunk))
            if chunk.sequence.num_output_tokens == chunk.sequence.request.sampling.max_tokens:
                queue.finish(chunk.sequence, FinishReason.LENGTH)
    return batch


def shape(batch: Batch) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.request.id, chunk.start, chunk.num_tokens) for chunk in batch.chunks]


def test_a_long_prompt_is_computed_in_chunks_mixed_with_decodes() -> None:
    queue = scheduler(max_num_batched_tokens=10)
    queue.add(request(range(3), name="short"))
    queue.add(request(range(100, 120), name="long"))
    assert shape(step(queue)) == [("short", 0, 3), ("long", 0, 7)]
    assert shape(step(queue)) == [("short", 3, 1), ("long", 7, 9)]
    assert shape(step(queue)) == [("short", 4, 1), ("long", 16, 4)]
    assert shape(step(queue)) == [("short", 5, 1), ("long", 20, 1)]


def test_lower_priority_numbers_come_first_then_arrival() -> None:
    queue = scheduler(max_num_seqs=1)
    for name, priority in [("a", 1), ("b", 0), ("c", 1), ("d", -1)]:
        queue.add(request(name=name, priority=priority, max_tokens=1))
    assert [step(queue).chunks[0].sequence.request.id for _ in range(4)] == ["d", "b", "a", "c"]


def test_no_more_sequences_run_than_allowed() -> None:
    queue = scheduler(max_num_seqs=2)
    for _ in range(5):
        queue.add(request())
    step(queue)
    assert repr(queue) == "<Scheduler 2 running 3 waiting <BlockPool 62 free 2 used 0 cached>>"


def test_a_waiting_head_that_does_not_fit_is_not_overtaken() -> None:
    queue = scheduler(num_blocks=4)
    queue.add(request(range(8), max_tokens=8))
    step(queue)
    queue.add(request(range(100, 112), name="large", max_tokens=1))
    queue.add(request(range(200, 202), name="small", max_tokens=1))
    assert len(step(queue).chunks) == 1
    assert queue.num_waiting == 2


@pytest.mark.parametrize("num_tokens", [BLOCK_SIZE, BLOCK_SIZE * 2, BLOCK_SIZE * 2 + 3])
def test_a_full_prefix_hit_leaves_a_token_to_compute(num_tokens: int) -> None:
    queue = scheduler()
    queue.add(request(range(num_tokens), max_tokens=1))
    step(queue)
    again = queue.add(request(range(num_tokens), max_tokens=1))
    chunk = step(queue).chunks[0]
    assert chunk.start == again.num_cached_tokens == (num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert chunk.num_tokens > 0
    assert (queue.num_queried_tokens, queue.num_hit_tokens) == (2 * num_tokens, chunk.start)


def test_another_salt_shares_nothing() -> None:
    queue = scheduler()
    for salt in ("a", "b", None):
        queue.add(request(range(12), salt=salt, max_tokens=1))
        step(queue)
    assert queue.num_hit_tokens == 0


def test_the_last_in_order_gives_up_its_blocks_when_they_run_out() -> None:
    queue = scheduler(num_blocks=4)
    first, last = (queue.add(request(range(start, start + 8), max_tokens=8)) for start in (0, 100))
    step(queue)
    batch = step(queue)
    assert [chunk.sequence for chunk in batch.chunks] == [first]
    assert repr(last).split(maxsplit=2)[2] == "WAITING 0/9 tokens 0 blocks>"
    assert queue.num_preemptions == 1


def test_a_preempted_sequence_goes_on_before_those_that_came_later() -> None:
    queue = scheduler(num_blocks=6, max_num_seqs=2)
    for name in ("first", "second", "third"):
        queue.add(request(range(8), name=name, salt=name, max_tokens=16 if name == "first" else 8))
    finished: list[str] = []
    while queue.num_running + queue.num_waiting:
        running = [chunk.sequence for chunk in step(queue).chunks]
        finished += [sequence.request.id for sequence in running if sequence.finish_reason]
    assert queue.num_preemptions > 0
    assert finished == ["first", "second", "third"]


def test_what_can_never_fit_is_refused() -> None:
    queue = scheduler(num_blocks=4)
    with pytest.raises(ValueError, match="17 tokens asked for, the KV cache holds 16"):
        queue.add(request(range(10), max_tokens=7))
    queue.add(request(range(10), max_tokens=6))
    assert queue.num_waiting == 1


def test_a_budget_below_the_number_of_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        scheduler(max_num_seqs=8, max_num_batched_tokens=7)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_sequence_finished_in_any_state_leaves_nothing_behind(steps: int) -> None:
    queue = scheduler(max_num_batched_tokens=8)
    sequence = queue.add(request(range(20)))
    for _ in range(steps):
        step(queue)
    queue.finish(sequence, FinishReason.ABORT)
    assert queue.find(sequence.request.id) is None
    assert (queue.num_running, queue.num_waiting, queue.pool.num_used) == (0, 0, 0)


def test_queued_prefill_counts_uncached_tokens_waiting_and_running() -> None:
    queue = scheduler(max_num_seqs=1, max_num_batched_tokens=8)
    queue.add(request(range(20)))
    queue.add(request(range(100, 110)))
    assert queue.num_queued_prefill_tokens == 30
    step(queue)
    assert queue.num_queued_prefill_tokens == 22
    step(queue), step(queue)
    assert queue.num_queued_prefill_tokens == 10
    queue.add(request(range(20)))
    assert queue.num_queued_prefill_tokens == 14


@pytest.mark.parametrize("seed", range(30))
def test_any_load_keeps_the_blocks_accounted_for_and_comes_to_its_end(seed: int) -> None:
    random = Random(seed)
    queue = scheduler(num_blocks=random.randint(8, 16), max_num_seqs=4, max_num_batched_tokens=random.randint(4, 24))
    expected = [random_request(random) for _ in range(25)]
    todo = list(expected)
    live: dict[str, Sequence] = {}
    outputs: dict[str, list[int]] = {}
    while todo or live:
        if todo and random.random() < 0.4:
            asked = todo.pop()
            live[asked.id] = queue.add(asked)
        if live and random.random() < 0.03:
            gone = live.pop(random.choice(list(live)))
            queue.finish(gone, FinishReason.ABORT)
        batch = step(queue)
        assert batch.num_tokens <= queue.max_num_batched_tokens
        assert queue.num_running <= queue.max_num_seqs
        assert len({chunk.sequence.request.id for chunk in batch.chunks}) == len(batch.chunks)
        used = {block for sequence in live.values() if not sequence.finish_reason for block in sequence.table}
        assert queue.pool.num_used == len(used)
        for name in [name for name, sequence in live.items() if sequence.finish_reason]:
            outputs[name] = live.pop(name).tokens
    for asked in expected:
        if asked.id in outputs:
            assert len(outputs[asked.id]) == len(asked.prompt) + asked.sampling.max_tokens
    assert queue.pool.num_used == 0


def random_request(random: Random) -> Request:
    shared = range(random.choice([0, 4, 8]))
    own = [random.randrange(3) for _ in range(random.randint(1, 12))]
    return request((*shared, *own), priority=random.randrange(2), max_tokens=random.randint(1, 12))


def test_an_earlier_priority_takes_the_place_of_a_later_one() -> None:
    queue = scheduler(max_num_seqs=2)
    first, later = (queue.add(request(range(8), name=name, salt=name, priority=2)) for name in ("first", "later"))
    step(queue)
    queue.add(request(range(8), name="urgent", priority=1))
    assert [chunk.sequence.request.id for chunk in step(queue).chunks] == ["first", "urgent"]
    assert (first.state, later.state) == (SequenceState.RUNNING, SequenceState.WAITING)


def test_an_equal_priority_waits() -> None:
    queue = scheduler(max_num_seqs=1)
    queue.add(request(range(8), name="first", priority=1))
    step(queue)
    queue.add(request(range(8), name="second", priority=1))
    assert [chunk.sequence.request.id for chunk in step(queue).chunks] == ["first"]


def test_nobody_gives_way_where_it_would_not_help() -> None:
    queue = scheduler(num_blocks=8, max_num_seqs=4)
    queue.add(request(range(16), name="early", max_tokens=4))
    queue.add(request(range(100, 108), name="late", priority=5, max_tokens=4))
    step(queue)
    queue.add(request(range(200, 228), name="large", priority=1, max_tokens=4))
    step(queue)
    assert queue.num_preemptions == 0


def test_those_that_give_way_are_as_many_as_it_takes() -> None:
    queue = scheduler(num_blocks=9, max_num_seqs=4)
    for index in range(3):
        queue.add(request(range(100 * index, 100 * index + 8), name=f"late{index}", priority=5, max_tokens=4))
    step(queue)
    queue.add(request(range(1000, 1012), name="urgent", max_tokens=4))
    step(queue)
    assert [sequence.request.id for sequence in queue.running] == ["urgent", "late0", "late1"]


def test_no_more_adapters_run_than_there_are_slots_and_others_may_pass() -> None:
    queue = scheduler(num_slots=1)
    add_adapters(queue, "a", "b")
    for name, adapter in [("first", "a"), ("waits", "b"), ("passes", None), ("joins", "a")]:
        queue.add(request(range(4), name=name, adapter=adapter, max_tokens=2))
    batch = step(queue)
    assert [chunk.sequence.request.id for chunk in batch.chunks] == ["first", "passes", "joins"]
    assert [placement.adapter.name for placement in batch.placements] == ["a"]
    step(queue)
    batch = step(queue)
    assert [chunk.sequence.request.id for chunk in batch.chunks] == ["waits"]
    assert [placement.adapter.name for placement in batch.placements] == ["b"]


def test_who_lacks_a_slot_is_not_overtaken_for_ever() -> None:
    queue = scheduler(max_num_seqs=2, num_slots=1)
    add_adapters(queue, "a", "b")
    queue.add(request(range(4), name="first", adapter="a", max_tokens=3))
    queue.add(request(range(4), name="waits", adapter="b", max_tokens=1))
    for index in range(9):
        queue.add(request(range(4), name=f"late{index}", adapter="a", max_tokens=3))
    order: list[str] = []
    while queue.num_running + queue.num_waiting:
        order += [chunk.sequence.request.id for chunk in step(queue).chunks if chunk.start == 0]
    assert order.index("waits") <= 4


def test_an_adapters_kv_is_its_own() -> None:
    queue = scheduler(num_slots=2)
    add_adapters(queue, "a", "b")
    for adapter in ("a", "b", None):
        queue.add(request(range(12), adapter=adapter, max_tokens=1))
        step(queue)
    assert queue.num_hit_tokens == 0
    queue.add(request(range(12), adapter="a", max_tokens=1))
    step(queue)
    assert queue.num_hit_tokens == 8


def test_what_an_unloaded_adapter_still_computes_is_shared_with_nobody() -> None:
    queue = scheduler(num_slots=1, max_num_batched_tokens=8)
    add_adapters(queue, "a")
    queue.add(request(range(12), adapter="a", max_tokens=2))
    step(queue)
    queue.pool.forget_adapter(queue.adapters.remove("a").load)
    while queue.num_running:
        step(queue)
    assert repr(queue.pool) == "<BlockPool 64 free 0 used 0 cached>"


def test_an_unknown_adapter_is_refused() -> None:
    with pytest.raises(UnknownAdapter, match="the adapter a is not loaded"):
        scheduler(num_slots=1).add(request(adapter="a"))


def test_an_id_that_is_queued_is_refused() -> None:
    queue = scheduler()
    queue.add(request(name="a"))
    with pytest.raises(ValueError, match="a request a is open already"):
        queue.add(request(name="a"))


def test_when_all_kv_is_lost_everything_begins_again() -> None:
    queue = scheduler(max_num_seqs=2, num_host_blocks=4, num_slots=1)
    add_adapters(queue, "a")
    for adapter in ("a", None, None):
        queue.add(request(range(12), adapter=adapter, max_tokens=3))
    step(queue)
    queue.forget_kv()
    assert repr(queue) == (
        "<Scheduler 0 running 3 waiting <BlockPool 64 free 0 used 0 cached <HostTier 4 free 0 cached>>>"
    )
    assert queue.num_queued_prefill_tokens >= 36
    assert [placement.adapter.name for placement in step(queue).placements] == ["a"]
