"""What is known of texts: the same as from scratch however texts grow and are forgotten, within its bytes."""

import random
import tracemalloc
from array import array

import pytest

from pointsman.blockhash import block_hashes
from router.prefix.blocks import MAX_HASHED_BLOCKS, CacheScope
from router.prefix.known import LINE_BYTES, PLACE_BYTES, KnownTexts, Place

SCOPE = CacheScope(block_size=16, adapter="blue", salt=None)
TEMPLATE = array("I", range(20))
START = Place.before_text(array("I"))


def key_of(parts: list[tuple[int, ...]]) -> int:
    return hash(tuple(parts)) % 2**64


def keys_of(parts: list[tuple[int, ...]]) -> list[int]:
    return [key_of(parts[: at + 1]) for at in range(len(parts))]


def read(known: KnownTexts, parts: list[tuple[int, ...]], start: Place = START) -> Place:
    """Follow a text of parts, each some ids, as far as it is known, and extend it."""
    keys = keys_of(parts)
    num_known, place = known.deepest(keys, start)
    encoded = [array("I", part) for part in parts[num_known:]]
    return place if num_known == len(parts) else known.extend(place, keys[num_known:], encoded, SCOPE, TEMPLATE)


def assert_is_from_scratch(place: Place, ids: list[int]) -> None:
    common = next((at for at, (a, b) in enumerate(zip(ids, TEMPLATE, strict=False)) if a != b), min(len(ids), 20))
    assert place.num_tokens == len(ids)
    assert list(place.block_hashes) == block_hashes(ids, 16, adapter="blue")
    assert place.num_template_tokens == common


def check(known: KnownTexts) -> None:
    """Every key of a line leads to a place on it, and the bytes are those of the lines."""
    assert known.num_bytes == sum(line.num_bytes for line in known._lines) <= known.max_bytes
    assert sum(len(line.keys) for line in known._lines) == len(known._places)
    assert all(known._places[key].line is line for line in known._lines for key in line.keys)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("max_bytes", [10**7, 20_000, 3_000, 1])
def test_every_text_is_as_from_scratch_whatever_was_read_or_forgotten_before(seed: int, max_bytes: int) -> None:
    rng, known = random.Random(seed), KnownTexts(max_bytes)
    texts: list[list[tuple[int, ...]]] = [[]]
    for _ in range(300):
        text = rng.choice(texts)[: rng.randint(0, 9)]
        for _ in range(rng.randint(1, 4)):
            length = sum(map(len, text))
            is_like_the_template = rng.random() < 0.4
            more = rng.choice([0, 1, 3, 16, 17, 40])
            ids = range(length, length + more) if is_like_the_template else [rng.randrange(9) for _ in range(more)]
            text = [*text, tuple(ids)]
        texts.append(text)
        assert_is_from_scratch(read(known, text), [token for part in text for token in part])
        check(known)


def test_ids_before_the_text_count_and_are_hashed() -> None:
    known, first = KnownTexts(10**6), Place.before_text(array("I", range(40)))
    place = read(known, [(7,) * 10, (8,) * 3], first)
    assert list(place.block_hashes) == block_hashes([*range(40), *[7] * 10, *[8] * 3], 16, adapter="blue")
    assert (place.num_tokens, place.num_template_tokens) == (53, 0)


def test_a_growing_text_stays_on_its_line_and_one_that_parts_gets_its_own() -> None:
    known = KnownTexts(10**6)
    read(known, [(1,) * 40, (2,) * 40])
    read(known, [(1,) * 40, (2,) * 40, (3,) * 40])
    assert repr(known).startswith("<KnownTexts 3 places on 1 lines")
    read(known, [(1,) * 40, (9,) * 40])
    assert repr(known).startswith("<KnownTexts 4 places on 2 lines")


def test_the_line_that_was_not_used_for_longest_goes_first() -> None:
    known = KnownTexts(4 * (LINE_BYTES + PLACE_BYTES + 100))
    for token in range(4):
        read(known, [(token,) * 20])
    read(known, [(0,) * 20])
    read(known, [(9,) * 20])
    assert known.get(key_of([(1,) * 20])) is None
    assert known.get(key_of([(0,) * 20])) is not None


def test_a_place_that_another_passed_meanwhile_stays() -> None:
    known, ids = KnownTexts(10**6), [array("I", [5] * 20)]
    one = known.extend(START, [1], ids, SCOPE, TEMPLATE)
    other = known.extend(START, [1], ids, SCOPE, TEMPLATE)
    assert known.get(1) is one
    assert list(other.block_hashes) == list(one.block_hashes)
    check(known)


def test_a_place_found_before_its_line_was_forgotten_can_still_be_extended() -> None:
    known = KnownTexts(2500)
    place = read(known, [(1,) * 40])
    for token in range(2, 9):
        read(known, [(token,) * 40])
    assert known.get(key_of([(1,) * 40])) is None
    longer = known.extend(place, [77], [array("I", [3] * 40)], SCOPE, TEMPLATE)
    assert_is_from_scratch(longer, [1] * 40 + [3] * 40)
    check(known)


def test_the_longest_texts_are_counted_whole_but_hashed_to_a_bound() -> None:
    known, bound = KnownTexts(10**8), MAX_HASHED_BLOCKS * 16
    long = [(1,) * (bound - 100), (2,) * 99, (3,) * 50]
    place = read(known, long)
    assert (place.num_tokens, place.num_blocks) == (bound + 49, MAX_HASHED_BLOCKS)
    longer = read(known, [*long, (4,) * 1000])
    assert (longer.num_tokens, longer.block_hashes) == (bound + 1049, place.block_hashes)


@pytest.mark.parametrize(("part", "num_parts"), [(3, 2), (300, 3), (300, 60)])
def test_it_takes_what_it_is_reckoned_at_or_less(part: int, num_parts: int) -> None:
    rng, known = random.Random(2), KnownTexts(2**20)
    tracemalloc.start()
    try:
        while known.num_bytes < known.max_bytes * 0.9:
            keys = [rng.getrandbits(64) for _ in range(num_parts)]
            encoded = [array("I", [rng.randrange(50_000) for _ in range(part)]) for _ in keys]
            known.extend(START, keys, encoded, SCOPE, TEMPLATE)
        del keys, encoded
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert known.num_bytes / 2 < traced < known.num_bytes
