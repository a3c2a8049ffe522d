"""What no router could beat: how many prompt tokens a cache of the whole fleet could serve. Knows block hashes in order
of arrival; knows no time, no replica and no policy.

Three caches of all replicas' blocks together: one that forgets nothing, one that evicts what is needed last (Belady's,
which knows the future), one that evicts the least recently used (what engines do, were they one). A prefix is of use
only whole: a block counts while all before it are there, and a block is never evicted before those behind it.
"""

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Sequence

import msgspec

from loadtest.simulator.scenario import Scenario
from loadtest.simulator.sessions import Users
from loadtest.simulator.setup import WARM_UP_SHARE
from loadtest.simulator.workload import Workload


class Bounds(msgspec.Struct, frozen=True):
    """Cached prompt tokens / prompt tokens, over the counted requests. All None in a closed loop, where what comes when
    depends on the answers. `adapter_loads`: the fewest that the slots of all replicas together need."""

    infinite: float | None = None
    belady_pooled: float | None = None
    lru_pooled: float | None = None
    adapter_loads: int | None = None


def bounds_of(scenario: Scenario, seed: int) -> Bounds:
    workload = scenario.workload(seed)
    if isinstance(workload, Users):
        return Bounds()
    tokens = scenario.replicas * (scenario.engine.kv_capacity_tokens + scenario.host_tokens)
    num_blocks = tokens // workload.block_size
    asks = [arrival.ask for arrival in workload.arrivals]
    chains = [ask.prompt.block_hashes for ask in asks]
    used = [ask.adapter for ask in asks if ask.adapter is not None]
    lora = scenario.lora
    return Bounds(
        infinite=_ratio(workload, infinite_hits(chains)),
        belady_pooled=_ratio(workload, belady_hits(chains, num_blocks)),
        lru_pooled=_ratio(workload, lru_hits(chains, num_blocks)),
        adapter_loads=None if lora is None else belady_loads(used, scenario.replicas * lora.num_slots),
    )


def belady_loads(used: Sequence[str], num_slots: int) -> int:
    """Loads of a device with so many slots that knows the future."""
    uses: defaultdict[str, list[int]] = defaultdict(list)
    for number in range(len(used) - 1, -1, -1):
        uses[used[number]].append(number)
    resident: dict[str, int] = {}
    num_loads = 0
    for name in used:
        uses[name].pop()
        if name not in resident:
            num_loads += 1
            if len(resident) >= num_slots:
                del resident[max(resident, key=resident.__getitem__)]
        resident[name] = uses[name][-1] if uses[name] else len(used)
    return num_loads


def infinite_hits(chains: Sequence[Sequence[int]]) -> list[int]:
    """Leading blocks of each chain that an earlier one had."""
    seen: set[int] = set()
    hits = []
    for chain in chains:
        hits.append(_num_leading(chain, seen))
        seen.update(chain)
    return hits


def lru_hits(chains: Sequence[Sequence[int]], num_blocks: int) -> list[int]:
    """Of a cache of so many blocks that evicts the least recently used, the deepest of a chain first."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for chain in chains:
        hits.append(_num_leading(chain, held))
        for block in reversed(chain):
            held[block] = None
            held.move_to_end(block)
        while len(held) > num_blocks:
            held.popitem(last=False)
    return hits


def belady_hits(chains: Sequence[Sequence[int]], num_blocks: int) -> list[int]:
    """Of a cache of so many blocks that evicts what is asked for last, and keeps nothing that never is again."""
    uses: defaultdict[int, list[int]] = defaultdict(list)
    for number in range(len(chains) - 1, -1, -1):
        for block in chains[number]:
            uses[block].append(number)
    held: dict[int, int] = {}
    # Farthest next use first; of one chain the deepest. An entry is stale once the block's next use has moved on.
    farthest: list[tuple[int, int, int]] = []
    hits = []
    for chain in chains:
        hits.append(_num_leading(chain, held))
        for depth, block in enumerate(chain):
            uses[block].pop()
            held.pop(block, None)
            if uses[block]:
                held[block] = uses[block][-1]
                heapq.heappush(farthest, (-held[block], -depth, block))
        while len(held) > num_blocks:
            next_use, _, block = heapq.heappop(farthest)
            if held.get(block) == -next_use:
                del held[block]
    return hits


def _num_leading(chain: Sequence[int], held: "set[int] | OrderedDict[int, None] | dict[int, int]") -> int:
    return next((depth for depth, block in enumerate(chain) if block not in held), len(chain))


def _ratio(workload: Workload, hits: Sequence[int]) -> float:
    """The last token of a prompt is always computed, and whole blocks only are shared."""
    first = int(WARM_UP_SHARE * len(hits))
    prompts = [arrival.ask.prompt for arrival in workload.arrivals]
    counted = list(zip(prompts, hits, strict=True))[first:]
    num_cached = sum(
        min(num_hits, (prompt.num_tokens - 1) // workload.block_size) * workload.block_size
        for prompt, num_hits in counted
    )
    return num_cached / max(1, sum(prompt.num_tokens for prompt, _ in counted))
