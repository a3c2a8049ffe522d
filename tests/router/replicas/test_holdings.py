from random import Random

from router.core import Prompt
from router.replicas.holdings import Holdings


def prompt(num_tokens: int, root: int = 0, block_size: int = 16) -> Prompt:
    hashes = tuple(hash((root, depth)) for depth in range(num_tokens // block_size))
    return Prompt(num_tokens, hashes, block_size)


def test_what_requests_share_is_counted_once() -> None:
    holdings = Holdings()
    holdings.hold(prompt(1100))
    holdings.hold(prompt(1100))
    assert holdings.num_tokens == 1100 + 1100 - 2 * 512
    assert holdings.num_shared(prompt(2000)) == 1024
    assert holdings.num_shared(prompt(2000, root=1)) == 0
    holdings.let_go(prompt(1100))
    assert holdings.num_tokens == 1100


def test_blocks_larger_than_a_stride_are_strides() -> None:
    holdings = Holdings()
    holdings.hold(prompt(3000, block_size=1024))
    assert holdings.num_shared(prompt(2048, block_size=1024)) == 2048
    holdings.hold(prompt(2048, block_size=1024))
    assert holdings.num_tokens == 3000


def test_short_prompts_hold_their_tokens() -> None:
    holdings = Holdings()
    holdings.hold(prompt(7))
    assert (holdings.num_tokens, holdings.num_shared(prompt(7))) == (7, 0)


def test_tokens_are_those_of_all_open_prompts_less_what_is_shared_whatever_comes_and_goes() -> None:
    dice, holdings, held = Random(4), Holdings(), list[Prompt]()
    for _ in range(2000):
        if dice.random() < 0.5 or not held:
            held.append(prompt(dice.randrange(3000), root=dice.randrange(4)))
            holdings.hold(held[-1])
        else:
            holdings.let_go(held.pop(dice.randrange(len(held))))
        strides = [stride for each in held for stride in each.block_hashes[31::32]]
        assert holdings.num_tokens == sum(each.num_tokens for each in held) - 512 * (len(strides) - len(set(strides)))
    for each in held:
        holdings.let_go(each)
    assert repr(holdings) == "<Holdings 0 tokens>"
