"""A dict in shards behaves as one dict."""

from array import array
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from router.prefix.runs import Run
from router.prefix.table import BlockTable


def run() -> Run:
    return Run(array("Q"), 0, None, 1)


@given(st.lists(st.tuples(st.sampled_from(["add", "move", "discard"]), st.lists(st.integers(0, 200), max_size=8))))
def test_it_holds_what_a_dict_would(steps: Iterable[tuple[str, list[int]]]) -> None:
    table, plain = BlockTable(), dict[int, Run]()
    for step, blocks in steps:
        each, known = run(), [block for block in dict.fromkeys(blocks) if block in plain]
        if step == "add":
            num_added = table.add(blocks, each)
            assert num_added == len(blocks) or blocks[num_added] in {**plain, **dict.fromkeys(blocks[:num_added])}
            plain.update(dict.fromkeys(blocks[:num_added], each))
        elif step == "move":
            table.move(known, each)
            plain.update(dict.fromkeys(known, each))
        else:
            table.discard(known)
            for block in known:
                del plain[block]
        assert len(table) == table.num_blocks == len(plain)
        assert all(table[block] is table.get(block) is held for block, held in plain.items())
        assert all((block in table) is (block in plain) for block in range(201))
    assert repr(table) == f"<BlockTable {len(plain)} blocks in 64 shards>"
