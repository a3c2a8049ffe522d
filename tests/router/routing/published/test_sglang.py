from random import Random

from router.routing.published.sglang import MAX_NODES, DispatchTree
from tests.router.nouns import make_prompt
from tests.router.routing.published.rig import Rig


def test_over_half_a_prompt_known_goes_to_whom_it_was_sent() -> None:
    rig = Rig("sglang-cache-aware")
    rig.place("b", make_prompt(160))
    rig.put("in_flight", b=30)
    assert rig.choose(make_prompt(304)) == "b"
    assert rig.choose(make_prompt(320)) != "b", "half is not over half"


def test_unbalanced_counts_send_everything_to_the_shortest_queue() -> None:
    rig = Rig("sglang-cache-aware")
    rig.place("b", make_prompt(160))
    rig.put("in_flight", a=1, b=33, c=0)
    assert rig.choose(make_prompt(160)) == "c"
    rig.put("in_flight", a=1, b=32, c=0)
    assert rig.choose(make_prompt(160)) == "b"


def test_unbalanced_is_a_ratio_too() -> None:
    rig = Rig("sglang-cache-aware")
    rig.place("b", make_prompt(160))
    rig.put("in_flight", a=1000, b=1040, c=1000)
    assert rig.choose(make_prompt(160)) == "b"


def test_equal_queues_go_to_fewer_so_far_then_in_order() -> None:
    rig = Rig("sglang-cache-aware")
    assert rig.choose() == "a"
    rig.place("a", make_prompt(16, first_hash=99))
    assert rig.choose() == "b"


def test_of_two_the_later_sent_to_is_the_match() -> None:
    rig = Rig("sglang-cache-aware")
    for name in "acb":
        rig.place(name)
    assert rig.choose() == "b"
    rig.place("c")
    assert rig.choose() == "c"


def test_the_tree_forgets_the_oldest_nodes_of_each_replica() -> None:
    tree = DispatchTree()
    for number in range(MAX_NODES + 3):
        tree.insert("a", [number * 10, number * 10 + 1])
    tree.insert("b", [0])
    tree.evict()
    assert tree.match([0, 1], {"a"}) == (0, None)
    assert tree.match([0, 1], {"a", "b"}) == (1, "b")
    assert tree.match([30, 31], {"a"}) == (2, "a")


def test_random_chains_are_matched_as_far_as_they_were_sent() -> None:
    dice, tree, sent = Random(2), DispatchTree(), dict[str, set[tuple[int, ...]]]()
    chains = [tuple(hash((root, depth)) for depth in range(dice.randrange(1, 12))) for root in range(8)]
    for _ in range(300):
        id, chain = dice.choice("abc"), dice.choice(chains)[: dice.randrange(1, 12)]
        tree.insert(id, list(chain))
        sent.setdefault(id, set()).update(chain[: n + 1] for n in range(len(chain)))
        asked, ids = dice.choice(chains), set(dice.sample("abc", 2))
        longest = max((n for n in range(len(asked) + 1) for i in ids if asked[:n] in sent.get(i, ())), default=0)
        assert tree.match(list(asked), ids)[0] == longest
