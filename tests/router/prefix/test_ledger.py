"""An engine's names for blocks and ours: against a naive engine with hashes of its own, in blocks and in pages."""

import random
from array import array
from collections.abc import Iterable, Sequence

import pytest

from pointsman.blockhash import block_hashes
from router.prefix.changes import Change, Emptied, Gone, Held, Shifted, apply
from router.prefix.events import Cleared, Event, Moved, Removed, Stored
from router.prefix.index import BlockIndex
from router.prefix.ledger import MAX_COPIES, Distrust, Ledger

SIZE = 4


def tokens(num_blocks: int, first: int = 1) -> list[int]:
    return list(range(first, first + num_blocks * SIZE))


def stored(names: Sequence[int], ids: Sequence[int], parent: int | None = None, **fields: object) -> Stored:
    return Stored(names, parent, ids, len(ids) // len(names), **fields)  # type: ignore[arg-type]


def told(ledger: Ledger, *events: Event) -> BlockIndex:
    """An index that knows what the ledger makes of these events."""
    index = BlockIndex(2**22)
    tell(index, ledger.apply(events))
    return index


def tell(index: BlockIndex, changes: Iterable[Change]) -> None:
    for change in changes:
        apply(index, "a", change)


def depth(index: BlockIndex, ids: Sequence[int], **scope: str) -> int:
    return index.match(block_hashes(ids, SIZE, **scope)).get("a", 0)  # type: ignore[arg-type]


def test_the_engine_s_hashes_are_names_and_its_tokens_are_hashed_by_us() -> None:
    changes = Ledger(SIZE).apply([stored([101, 55, 7], tokens(3)), stored([9], tokens(1, 13), parent=7)])
    ours = block_hashes(tokens(4), SIZE)
    assert changes == [
        Held(None, array("Q", ours[:3]).tobytes()),
        Held(ours[2], array("Q", ours[3:]).tobytes()),
    ]


def test_what_follows_an_unknown_block_is_left_out_and_never_taken_for_a_beginning() -> None:
    ledger = Ledger(SIZE)
    index = told(ledger, stored([1], tokens(1), parent=999), stored([2], tokens(1, 5), parent=1))
    assert index.total_blocks == 0
    assert ledger.tally.num_orphans == 2


def test_the_same_text_with_another_adapter_salt_or_image_never_shares_a_block() -> None:
    ids = tokens(2)
    index = told(
        Ledger(SIZE),
        stored([1, 2], ids, adapter="tuned"),
        stored([3, 4], ids, salt="pepper"),
        stored([5, 6], ids, extra_keys=[(b"image",), ()]),
    )
    assert depth(index, ids) == 0
    assert depth(index, ids, adapter="tuned") == 2
    assert depth(index, ids, salt="pepper") == 2
    assert depth(index, ids, salt="other") == 0
    assert index.total_blocks == 6


def test_a_removed_block_leaves_the_index_and_its_memory_is_minded() -> None:
    ledger = Ledger(SIZE)
    ledger.apply([stored([1, 2], tokens(2)), stored([1], tokens(1), is_host=True)])
    assert ledger.apply([Removed([2, 77])]) == [Gone(array("Q", block_hashes(tokens(2), SIZE)[1:]).tobytes())]
    assert ledger.apply([Removed([1], is_host=True)]) == [
        Gone(array("Q", block_hashes(tokens(1), SIZE)).tobytes(), is_host=True)
    ]
    assert ledger.apply([Removed([1], is_host=None)]) == []
    assert ledger.num_blocks == 1


def test_a_block_that_was_computed_twice_is_held_until_both_copies_are_gone() -> None:
    ledger = Ledger(SIZE)
    ledger.apply([stored([1], tokens(1))] * 3)
    assert ledger.apply([Removed([1]), Removed([1])]) == []
    assert len(ledger.apply([Removed([1])])) == 1


def test_an_engine_that_tells_of_each_reuse_does_not_pile_up_copies() -> None:
    ledger = Ledger(SIZE)
    ledger.apply([stored([1], tokens(1))] * (MAX_COPIES + 5))
    assert len(ledger.apply([Removed([1])])) == 1


def test_a_clear_forgets_all_and_in_one_memory_only_that() -> None:
    ledger = Ledger(SIZE)
    ledger.apply([stored([1, 2], tokens(2)), stored([1], tokens(1), is_host=True)])
    (change,) = ledger.apply([Cleared(is_host=True)])
    assert isinstance(change, Gone)
    assert ledger.apply([Cleared()]) == [Emptied()]
    assert ledger.num_blocks == 0
    assert ledger.apply([Removed([1])]) == []


def test_a_block_may_move_between_memories() -> None:
    ledger = Ledger(SIZE)
    ledger.apply([stored([1], tokens(1))])
    (own,) = block_hashes(tokens(1), SIZE)
    assert ledger.apply([Moved(1, is_host=True), Moved(5, is_host=True)]) == [Shifted(own, is_host=True)]
    assert ledger.apply([Removed([1]), Removed([1], is_host=True)]) == [Gone(array("Q", [own]).tobytes(), is_host=True)]


def test_one_name_for_different_tokens_is_not_believed() -> None:
    ledger = Ledger(SIZE)
    ledger.apply([stored([1], tokens(1))])
    with pytest.raises(Distrust, match="one name to blocks of different tokens"):
        ledger.apply([stored([1], tokens(1, 50))])


@pytest.mark.parametrize("ids", [[-1, 2, 3, 4], [1, 2, 3, 2**32], [1, 2, 3, "4"], [(1, 2), 3, 4, 5]])
@pytest.mark.parametrize("num_pages", [1, 2])
def test_token_ids_that_are_none_are_not_believed(ids: Sequence[int], num_pages: int) -> None:
    with pytest.raises(Distrust, match="token ids"):
        Ledger(SIZE).apply([stored(range(num_pages), ids)])


def test_a_feed_that_floods_is_bounded() -> None:
    ledger = Ledger(SIZE, max_blocks=10)
    for at in range(10):
        ledger.apply([stored([at], tokens(1, 100 * at + 1))])
    with pytest.raises(Distrust, match="more than 10 blocks"):
        ledger.apply([stored([11], tokens(1, 5000))])


def test_blocks_of_a_size_that_does_not_divide_ours_are_left_out_and_counted() -> None:
    ledger = Ledger(SIZE)
    assert ledger.apply([Stored([1], None, [1, 2, 3], 3), Stored([1], None, [1] * 8, 8)]) == []
    assert ledger.tally.num_wrong_sizes == 2


def test_of_a_hybrid_model_s_caches_only_the_first_whole_one_counts() -> None:
    ledger = Ledger(SIZE)
    index = told(
        ledger,
        stored([1], tokens(1), group=0, is_windowed=True),
        stored([2], tokens(1), group=1),
        stored([3], tokens(1), group=2),
    )
    assert depth(index, tokens(1)) == 1
    assert ledger.apply([Removed([2], group=0), Removed([3], group=2)]) == []
    assert len(ledger.apply([Removed([2], group=1)])) == 1
    assert ledger.tally.num_foreign_groups == 2


class NaiveEngine:
    """Holds token prefixes in pages of one size, under names that say nothing, and tells of each."""

    def __init__(self, rng: random.Random, page_size: int) -> None:
        self.rng, self.page_size = rng, page_size
        self.held: dict[tuple[int, ...], int] = {}

    def compute(self, ids: Sequence[int]) -> list[Event]:
        """Store what is not held of a prompt, in one event or in several."""
        size, events = self.page_size, list[Event]()
        ends = [end for end in range(size, len(ids) + 1, size) if tuple(ids[:end]) not in self.held]
        while ends:
            part, ends = ends[: (num := self.rng.randint(1, len(ends)))], ends[num:]
            names = [self.rng.getrandbits(64) for _ in part]
            self.held.update({tuple(ids[:end]): name for end, name in zip(part, names, strict=True)})
            parent = self.held.get(tuple(ids[: part[0] - size]))
            events.append(Stored(names, parent, ids[part[0] - size : part[-1]], size))
        return events

    def evict(self) -> list[Event]:
        """A page that nothing follows."""
        leaves = [ids for ids in self.held if not any(other[: len(ids)] == ids and other != ids for other in self.held)]
        gone = self.rng.sample(leaves, min(len(leaves), self.rng.randint(1, 4)))
        return [Removed([self.held.pop(ids) for ids in gone])] if gone else []


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_what_an_engine_holds_is_what_the_index_finds(page_size: int, seed: int) -> None:
    rng = random.Random(seed)
    engine, ledger, index = NaiveEngine(rng, page_size), Ledger(SIZE), BlockIndex(2**22)
    prompts = [[rng.randint(1, 2) for _ in range(rng.randint(1, 24))] for _ in range(25)]
    for _ in range(150):
        events = engine.compute(rng.choice(prompts)) if rng.random() < 0.5 else engine.evict()
        tell(index, ledger.apply(events))
        for ids in prompts:
            ends = range(SIZE, len(ids) + 1, SIZE)
            held = next((at for at, end in enumerate(ends) if tuple(ids[:end]) not in engine.held), len(ends))
            assert depth(index, ids) == held


def test_a_page_in_the_middle_that_goes_takes_its_block_with_it() -> None:
    ledger, index = Ledger(SIZE), BlockIndex(2**22)
    tell(index, ledger.apply([Stored([1, 2, 3, 4], None, tokens(1), 1), Stored([5], 3, [99], 1)]))
    assert depth(index, tokens(1)) == depth(index, [1, 2, 3, 99]) == 1
    tell(index, ledger.apply([Removed([2])]))
    assert depth(index, tokens(1)) == depth(index, [1, 2, 3, 99]) == 0
