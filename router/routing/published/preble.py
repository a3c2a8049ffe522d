"""Preble's E2 policy: exploit a prefix where it is, or explore. Knows our own dispatches of the last minutes.

Left out: the cost of what an engine would evict, and doubling by observed first-token time; a lone hot prefix gets
another replica when it makes up most of its replica's load.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from router.core import Candidate, Demand, Lease

WINDOW_S = 180.0
MIN_IMBALANCE = 1.5
MIN_REQUESTS_PER_REPLICA = 50
MAX_SAMPLES = 256
# Blocks kept for each dispatch in the window, before those without an owner of late are swept out.
BLOCKS_PER_SENT = 64


@dataclass(eq=False, slots=True)
class _Prefix:
    """Blocks that one dispatch added to a known prompt, and the replicas that they are allocated to, since when."""

    owners: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    replica_id: str
    prefix: _Prefix
    prefill_s: float


@dataclass(eq=False, slots=True)
class ExploitOrExplore:
    """Where fewer tokens of the prompt are missed than are matched: the least load among the replicas that its deepest
    known prefix is allocated to; else the least load of all. Load in seconds: the prefills missed there in the last
    three minutes + open requests x median decode time. Costs do not matter."""

    _prefixes: dict[int, _Prefix] = field(default_factory=dict, init=False)
    _window: deque[_Sent] = field(default_factory=deque, init=False)
    _prefill_s: dict[str, float] = field(default_factory=dict, init=False)
    _decode_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES), init=False)
    _median_decode_s: float = field(default=0.0, init=False)
    _num_since_move: int = field(default=0, init=False)

    def pick(self, demand: Demand, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
        self._forget(demand.request.arrived)
        prompt, among = demand.prompt, list(range(len(candidates)))
        depth, owners = self._deepest(prompt.block_hashes, {each.replica.id for each in candidates})
        if prompt.num_tokens < 2 * depth * prompt.block_size:
            among = [at for at in among if candidates[at].replica.id in owners]
        return min(among, key=lambda at: self._load(candidates[at]))

    def placed(self, lease: Lease) -> None:
        prompt, id, now = lease.demand.prompt, lease.replica.id, lease.taken_at
        depth, _ = self._deepest(prompt.block_hashes, {id})
        num_missed = prompt.num_tokens - depth * prompt.block_size
        prefill_s = lease.replica.step.prefill_s(num_missed, prompt.num_tokens)
        prefix = self._allocate(prompt.block_hashes, id, now)
        if prefix is not None:
            self._window.append(_Sent(now, id, prefix, prefill_s))
            self._prefill_s[id] = self._prefill_s.get(id, 0.0) + prefill_s
        self._num_since_move += 1
        if self._num_since_move >= MIN_REQUESTS_PER_REPLICA * max(1, len(self._prefill_s)):
            self._rebalance()
        lease.when_released(self._released)

    def _released(self, lease: Lease) -> None:
        if lease.decode_s is not None:
            self._decode_s.append(lease.decode_s)
            self._median_decode_s = median(self._decode_s)

    def _load(self, candidate: Candidate) -> float:
        id = candidate.replica.id
        return self._prefill_s.get(id, 0.0) + candidate.replica.in_flight * self._median_decode_s

    def _deepest(self, blocks: Sequence[int], ids: set[str]) -> tuple[int, set[str]]:
        """Leading blocks that are allocated to any of `ids`, and to whom the last of them is."""
        low, high, found = 0, len(blocks), set[str]()
        while low < high:
            middle = (low + high) // 2
            prefix = self._prefixes.get(blocks[middle])
            owners = set() if prefix is None else ids & prefix.owners.keys()
            if owners:
                low, found = middle + 1, owners
            else:
                high = middle
        return low, found

    def _allocate(self, blocks: Sequence[int], id: str, now: float) -> _Prefix | None:
        """All of the prompt is this replica's, too. Returns the deepest prefix that was known, or the new one."""
        deepest, new = None, _Prefix({id: now})
        for block in blocks:
            prefix = self._prefixes.setdefault(block, new)
            prefix.owners[id] = now
            deepest = prefix if prefix is not new or deepest is None else deepest
        return deepest

    def _forget(self, now: float) -> None:
        while self._window and self._window[0].at < now - WINDOW_S:
            gone = self._window.popleft()
            self._prefill_s[gone.replica_id] -= gone.prefill_s
        if len(self._prefixes) > BLOCKS_PER_SENT * (len(self._window) + MAX_SAMPLES):
            live = {block: each for block, each in self._prefixes.items() if _is_recent(each, now - WINDOW_S)}
            self._prefixes = live

    def _rebalance(self) -> None:
        """From the fullest replica to the emptiest: the cheapest prefixes first, until they are near; where one prefix
        is most of the load, a second replica for it."""
        self._num_since_move = 0
        fullest, emptiest = (by(self._prefill_s, key=self._prefill_s.__getitem__) for by in (max, min))
        excess_s = self._prefill_s[fullest] - MIN_IMBALANCE * self._prefill_s[emptiest]
        costs: dict[_Prefix, float] = {}
        for sent in self._window:
            if sent.replica_id == fullest:
                costs[sent.prefix] = costs.get(sent.prefix, 0.0) + sent.prefill_s
        for prefix, cost_s in sorted(costs.items(), key=lambda item: item[1]):
            if excess_s <= 0.0:
                return
            if cost_s <= self._prefill_s[fullest] / 2:
                prefix.owners.pop(fullest, None)
            prefix.owners.setdefault(emptiest, self._window[-1].at)
            # What leaves the one comes to the other.
            excess_s -= (1.0 + MIN_IMBALANCE) * cost_s


def _is_recent(prefix: _Prefix, start: float) -> bool:
    return any(at >= start for at in prefix.owners.values())
