"""How well we know what each replica holds, and what is learned of it from its answers. Knows the index, feeds' status
and usage; nothing of sockets or of how a replica is chosen.

EXACT: it tells us, and its answers bear it out. APPROXIMATE: it holds what was sent there, as far as a cache of its
size would. BLIND: we do not know its tokens. Every replica is one of these, and says so.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from router.core import Lease, Pool, Replica, Usage
from router.prefix.follower import FeedState, FeedStatus
from router.prefix.index import BlockIndex
from router.prefix.trust import Trust

# An engine tells of a prompt's blocks within so long after its answer; a sibling's requests may still be open then.
CONFIRM_S = 2.0
SIBLING_S = 30.0
MAX_EXPECTED = 100_000
# A modelled cache that missed what it should have held is smaller than we thought, by so much.
SHRINK, GROW, MIN_CAPACITY_BLOCKS = 0.9, 1.02, 16
_TOLD = (FeedState.SYNCED, FeedState.LATE)


class Knowing(StrEnum):
    EXACT = "EXACT"
    APPROXIMATE = "APPROXIMATE"
    BLIND = "BLIND"


@dataclass(frozen=True, slots=True)
class Known:
    """`reason` says why it is not EXACT; empty where nothing more is to be had."""

    knowing: Knowing
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A guess that the replica should tell us of until then."""

    due: float
    replica_id: str
    block_hashes: Sequence[int]
    is_evidence: bool


@dataclass(eq=False, slots=True)
class Reuse:
    """Tokens of prompts that were expected in the cache, and that were found there."""

    expected_tokens: int = 0
    reported_tokens: int = 0


@dataclass(eq=False, slots=True)
class Knowledge:
    """`has_tokenizer(pool)`: are its prompts read as the replicas read them?"""

    index: BlockIndex
    has_tokenizer: Callable[[Pool], bool]
    _statuses: dict[str, FeedStatus] = field(default_factory=dict, init=False)
    _trusts: dict[str, Trust] = field(default_factory=dict, init=False)
    _probes: dict[str, str] = field(default_factory=dict, init=False)
    _sizes: dict[str, int] = field(default_factory=dict, init=False)
    # Whose cache was found by its answers to hold more or less than was thought.
    _sized: set[str] = field(default_factory=set, init=False)
    _reuse: dict[str, Reuse] = field(default_factory=dict, init=False)
    # Each in the order of its dues.
    _expected: deque[_Expected] = field(default_factory=deque, init=False)
    _of_siblings: deque[_Expected] = field(default_factory=deque, init=False)

    def of(self, replica: Replica) -> Known:
        if replica.pool is None or not self.has_tokenizer(replica.pool):
            return Known(Knowing.BLIND, "no tokenizer: prompts are hashed as text")
        status, trust = self._statuses.get(replica.id, FeedStatus()), self._trust(replica.id)
        if probe := self._probes.get(replica.id):
            return Known(Knowing.APPROXIMATE, probe)
        if trust.is_broken:
            return Known(Knowing.APPROXIMATE, trust.reason)
        if status.state is FeedState.SYNCED or (status.state is FeedState.LATE and trust.is_proven):
            return Known(Knowing.EXACT)
        return Known(Knowing.APPROXIMATE, status.reason or f"KV events are {status.state}")

    def reuse(self) -> Mapping[str, Reuse]:
        """By replica id."""
        return self._reuse

    def told(self, replica_id: str, status: FeedStatus) -> None:
        """Its feed is in another state."""
        before = self._statuses.get(replica_id, FeedStatus())
        self._statuses[replica_id] = status
        if status.state in _TOLD:
            self.index.limit(replica_id, None)
        elif status.state is not FeedState.SYNCING:
            self._model(replica_id)
        if before.state is not status.state and status.state is FeedState.SYNCING:
            self._trusts.pop(replica_id, None)

    def probed(self, replica_id: str, fault: str | None) -> None:
        """What came of asking the replica itself for the tokens of a text; None: they are ours."""
        if fault is None:
            self._probes.pop(replica_id, None)
        else:
            self._probes[replica_id] = fault

    def identified(self, replica: Replica) -> None:
        """Its size may be known now."""
        if replica.kv_capacity_tokens is not None and replica.pool is not None:
            num_blocks = replica.kv_capacity_tokens // replica.pool.block_size
            self._sizes[replica.id] = max(MIN_CAPACITY_BLOCKS, num_blocks)
            self._model(replica.id)

    def forget(self, replica_id: str) -> None:
        """It failed or is gone, and what it held with it."""
        self._trusts.pop(replica_id, None)
        self._sized.discard(replica_id)

    def learned_size(self, replica_id: str) -> int | None:
        """Blocks that its cache was found to hold; None where its answers taught nothing of it."""
        return self.index.capacity(replica_id) if replica_id in self._sized else None

    def take_size(self, replica_id: str, num_blocks: int) -> None:
        """A sibling has found this out, which holds where nothing was found out here."""
        if replica_id not in self._sized and not self._tells(replica_id):
            self.index.limit(replica_id, max(MIN_CAPACITY_BLOCKS, num_blocks))

    def dispatched_elsewhere(self, replica_id: str, block_hashes: Sequence[int], now: float) -> None:
        """A sibling sent a prompt there, which is a guess here, too."""
        if self._tells(replica_id):
            self._expect(self._of_siblings, _Expected(now + SIBLING_S, replica_id, block_hashes, is_evidence=False))

    def failed(self, lease: Lease, now: float) -> None:
        """An attempt came to nothing: what it should have left in the cache is not there, unless it had begun."""
        prompt, matched = lease.demand.prompt, lease.decision.matched_tokens
        if lease.has_started:
            self.dispatched_elsewhere(lease.replica.id, prompt.block_hashes, now)
        else:
            self.index.retract(lease.replica.id, prompt.block_hashes, -(-matched // prompt.block_size))

    def answered(self, lease: Lease, usage: Usage, now: float) -> None:
        """An attempt came to its end."""
        replica, prompt = lease.replica, lease.demand.prompt
        if self._tells(replica.id) and len(prompt.block_hashes):
            guess = _Expected(now + CONFIRM_S, replica.id, prompt.block_hashes, is_evidence=prompt.is_exact)
            self._expect(self._expected, guess)
        if not prompt.is_exact:
            return
        if usage.prompt_tokens is not None and usage.prompt_tokens != prompt.num_tokens:
            self._trust(replica.id).disagree(
                f"the tokenizer is not the engine's: {prompt.num_tokens} tokens counted, {usage.prompt_tokens} reported"
            )
        elif usage.cached_tokens is not None:
            self._compare(lease, usage.cached_tokens)

    def sweep(self, now: float, replica_ids: Collection[str]) -> None:
        """Take back the guesses that did not come true in time, and forget all replicas but these."""
        for known in (self._statuses, self._trusts, self._probes, self._sizes, self._reuse):
            for id in known.keys() - replica_ids:
                known.pop(id)
        self._sized &= set(replica_ids)
        for id in self._sizes:
            self._model(id)  # one that was lost came back with an empty cache of the same size
        for guesses in (self._expected, self._of_siblings):
            while guesses and guesses[0].due <= now:
                self._check(guesses.popleft())

    def _check(self, guess: _Expected) -> None:
        if not self._tells(guess.replica_id):
            return
        is_told = self.index.is_told(guess.replica_id, guess.block_hashes[-1])
        if not is_told:
            self.index.retract(guess.replica_id, guess.block_hashes)
        if guess.is_evidence and not is_told and not self.index.is_told(guess.replica_id, guess.block_hashes[0]):
            self._trust(guess.replica_id).disagree("its KV events do not tell of what was sent there")

    def _compare(self, lease: Lease, reported: int) -> None:
        replica, expected, size = lease.replica, lease.decision.matched_tokens, lease.demand.prompt.block_size
        reuse = self._reuse.setdefault(replica.id, Reuse())
        reuse.expected_tokens += expected
        reuse.reported_tokens += reported
        if max(expected, reported) < size:
            return  # nothing was expected, and nothing found
        if self._tells(replica.id):
            if abs(expected - reported) <= size:
                self._trust(replica.id).agree()
            else:
                self._trust(replica.id).disagree(f"{expected} tokens expected in its cache, {reported} reported")
        else:
            self._trust(replica.id).agree()  # on the tokens
            self._learn_size(replica, expected, reported, size)

    def _learn_size(self, replica: Replica, expected: int, reported: int, size: int) -> None:
        """What should have been there and was not has been evicted: the cache is smaller, or fuller, than modelled."""
        capacity, held = self.index.capacity(replica.id), self.index.num_blocks(replica.id)
        if reported + size < expected:
            shrunk = int(SHRINK * (held if capacity is None else min(held, capacity)))
            self._sized.add(replica.id)
            self.index.limit(replica.id, max(MIN_CAPACITY_BLOCKS, shrunk))
        elif capacity is not None and held > SHRINK * capacity:
            most = self._sizes.get(replica.id)
            grown = int(GROW * capacity) + 1
            self._sized.add(replica.id)
            self.index.limit(replica.id, grown if most is None else max(capacity, min(grown, most)))

    def _model(self, replica_id: str) -> None:
        size = self._sizes.get(replica_id)
        if size is not None and not self._tells(replica_id) and self.index.capacity(replica_id) is None:
            self.index.limit(replica_id, size)

    def _tells(self, replica_id: str) -> bool:
        status = self._statuses.get(replica_id)
        return status is not None and status.state in _TOLD

    def _expect(self, guesses: deque[_Expected], guess: _Expected) -> None:
        if len(guesses) >= MAX_EXPECTED:
            self._check(guesses.popleft())
        guesses.append(guess)

    def _trust(self, replica_id: str) -> Trust:
        return self._trusts.setdefault(replica_id, Trust())

    def __repr__(self) -> str:
        return f"<Knowledge of {len(self._statuses)} feeds, {len(self._expected)} guesses open>"
