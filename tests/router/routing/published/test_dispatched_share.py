from router.core import Decision, Lease, Prompt
from router.routing.published.dispatched_share import MAX_BLOCKS, DispatchedShare
from tests.router.nouns import make_candidate, make_demand


def prompt(first: int, num_blocks: int, block_size: int = 64) -> Prompt:
    return Prompt(num_blocks * block_size, tuple(range(first, first + num_blocks)), block_size)


def send(scorer: DispatchedShare, name: str, sent: Prompt) -> None:
    candidate = make_candidate(name)
    decision = Decision(candidate.replica, "p", 0, sent.num_tokens, 0.0, {})
    scorer.placed(Lease(make_demand(prompt=sent), decision, 0.0, lambda _: None, lambda _: None))


def shares(scorer: DispatchedShare, asked: Prompt, names: str = "ab") -> list[float]:
    return scorer.score(make_demand(prompt=asked), [make_candidate(name) for name in names])


def test_the_leading_part_that_was_sent_counts_whatever_the_engine_holds() -> None:
    scorer = DispatchedShare()
    send(scorer, "a", prompt(0, 5))
    assert shares(scorer, prompt(0, 10)) == [0.5, 0.0]
    assert shares(scorer, prompt(1, 10)) == [0.4, 0.0], "blocks in mid-prompt are the other prompt's beginning"


def test_small_blocks_are_looked_at_by_64_tokens() -> None:
    scorer = DispatchedShare()
    send(scorer, "a", prompt(0, 6, block_size=16))
    assert shares(scorer, prompt(0, 8, block_size=16)) == [0.5, 0.0]


def test_the_least_recently_used_are_forgotten() -> None:
    scorer = DispatchedShare()
    send(scorer, "a", prompt(0, 10))
    for start in range(10_000, 10_000 + MAX_BLOCKS, 1000):
        send(scorer, "a", prompt(start, min(1000, 10_000 + MAX_BLOCKS - start)))
    assert shares(scorer, prompt(0, 10)) == [0.0, 0.0]


def test_an_empty_prompt_is_held_by_nobody() -> None:
    assert shares(DispatchedShare(), prompt(0, 0)) == [0.0, 0.0]
