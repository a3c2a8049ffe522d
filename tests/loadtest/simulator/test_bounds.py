"""What pooled caches could serve, against plain models of them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.bounds import belady_hits, infinite_hits, lru_hits


@st.composite
def chains(draw: st.DrawFn) -> list[list[int]]:
    """Chains over a small tree: a block's number stands for all before it."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12))
    return [[hash(tuple(path[: depth + 1])) for depth in range(len(path))] for path in paths]


def best_possible(chains: Sequence[Sequence[int]], num_blocks: int) -> int:
    """Hits of the best of all prefix-closed choices of what to keep, tried one by one."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for chain in chains:
        following: dict[frozenset[int], int] = {}
        for held, num_hits in states.items():
            num_here = next((depth for depth, block in enumerate(chain) if block not in held), len(chain))
            for kept in closed_subsets(held | set(chain), chains, num_blocks):
                following[kept] = max(following.get(kept, 0), num_hits + num_here)
        states = following
    return max(states.values())


def closed_subsets(blocks: frozenset[int], chains: Sequence[Sequence[int]], most: int) -> list[frozenset[int]]:
    parents = {block: chain[depth - 1] if depth else None for chain in chains for depth, block in enumerate(chain)}
    found = {frozenset[int]()}
    for _ in range(min(most, len(blocks))):
        found |= {
            kept | {new} for kept in found for new in blocks - kept if parents[new] is None or parents[new] in kept
        }
    return [kept for kept in found if len(kept) <= most]


@given(chains())
def test_an_infinite_cache_serves_all_that_came_before(given_chains: list[list[int]]) -> None:
    seen: set[int] = set()
    for chain, num_hits in zip(given_chains, infinite_hits(given_chains), strict=True):
        assert num_hits == len([block for block in chain if block in seen])
        seen.update(chain)


@given(chains(), st.integers(0, 8))
def test_no_cache_beats_a_larger_one_and_belady_none_beats(given_chains: list[list[int]], num_blocks: int) -> None:
    infinite = sum(infinite_hits(given_chains))
    lru, belady = sum(lru_hits(given_chains, num_blocks)), sum(belady_hits(given_chains, num_blocks))
    assert lru <= belady <= infinite
    assert sum(lru_hits(given_chains, 10**6)) == sum(belady_hits(given_chains, 10**6)) == infinite


@given(chains().filter(lambda some: len(some) <= 6), st.integers(1, 3))
def test_belady_is_the_best_possible(given_chains: list[list[int]], num_blocks: int) -> None:
    assert sum(belady_hits(given_chains, num_blocks)) == best_possible(given_chains, num_blocks)
