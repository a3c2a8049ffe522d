"""SGLang's (and SMG's) cache_aware policy. Knows our own dispatches and requests in flight; nothing of engines."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core import Candidate, Demand, Lease

EVICT_EVERY_S = 30.0
MAX_NODES = 10_000


@dataclass(eq=False, slots=True)
class DispatchTree:
    """Blocks sent to each replica. A node is what one dispatch added to a replica's part, and goes as a whole."""

    _sent: dict[int, "OrderedDict[str, None]"] = field(default_factory=dict)
    _nodes: dict[str, "OrderedDict[int, list[int]]"] = field(default_factory=dict)
    _node_of: dict[tuple[str, int], int] = field(default_factory=dict)

    def match(self, blocks: Sequence[int], ids: set[str]) -> tuple[int, str | None]:
        """Leading blocks that somebody of `ids` was sent, and who was sent them last."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            is_known = not ids.isdisjoint(self._sent.get(blocks[middle], ()))
            low, high = (middle + 1, high) if is_known else (low, middle)
        if low == 0:
            return 0, None
        return low, next(id for id in reversed(self._sent[blocks[low - 1]]) if id in ids)

    def insert(self, id: str, blocks: Sequence[int]) -> None:
        nodes, new = self._nodes.setdefault(id, OrderedDict()), list[int]()
        for block in blocks:
            sent = self._sent.setdefault(block, OrderedDict())
            if id in sent:
                nodes.move_to_end(self._node_of[id, block])
                sent.move_to_end(id)
            else:
                sent[id] = None
                self._node_of[id, block] = blocks[-1]
                new.append(block)
        if new:
            nodes[blocks[-1]] = new

    def evict(self) -> None:
        for id, nodes in self._nodes.items():
            while len(nodes) > MAX_NODES:
                _, blocks = nodes.popitem(last=False)
                for block in blocks:
                    del self._node_of[id, block]
                    del self._sent[block][id]
                    if not self._sent[block]:
                        del self._sent[block]


@dataclass(eq=False, slots=True)
class CacheAware:
    """Balanced by requests in flight (largest - smallest <= 32, or largest <= 1.1 x smallest): whom the longest known
    part was sent to, if it is over half of the prompt; else, and where unbalanced, the fewest requests in flight, then
    the fewest so far, then in order. Costs do not matter."""

    min_match_share: float = 0.5
    max_load_gap: int = 32
    max_load_ratio: float = 1.1
    _tree: DispatchTree = field(default_factory=DispatchTree, init=False)
    _num_sent: dict[str, int] = field(default_factory=dict, init=False)
    _evicted_at: float = field(default=0.0, init=False)

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        loads = [each.replica.in_flight for each in candidates]
        if max(loads) - min(loads) > self.max_load_gap and max(loads) > self.max_load_ratio * min(loads):
            return self._shortest(candidates)
        places = {each.replica.id: at for at, each in enumerate(candidates)}
        num_blocks, id = self._tree.match(demand.prompt.block_hashes, set(places))
        if id is not None and num_blocks * demand.prompt.block_size > self.min_match_share * demand.prompt.num_tokens:
            return places[id]
        return self._shortest(candidates)

    def placed(self, lease: Lease) -> None:
        id = lease.replica.id
        self._num_sent[id] = self._num_sent.get(id, 0) + 1
        self._tree.insert(id, lease.demand.prompt.block_hashes)
        if lease.taken_at - self._evicted_at >= EVICT_EVERY_S:
            self._evicted_at = lease.taken_at
            self._tree.evict()

    def _shortest(self, candidates: Sequence[Candidate]) -> int:
        def rank(at: int) -> tuple[int, int, int]:
            replica = candidates[at].replica
            return replica.in_flight, self._num_sent.get(replica.id, 0), at

        return min(range(len(candidates)), key=rank)
