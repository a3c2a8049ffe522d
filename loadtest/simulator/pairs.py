"""KV from the replica that computed a prompt to the one that decodes: how long it takes, and what is then in its cache.
Knows block pools, links and the virtual clock; knows no router and no policy.

Each replica has one link, on which one transfer after the other goes; a transfer takes both ends' for as long. What the
other has no room for, or has lost meanwhile, does not come: the prompt is computed there then, as the engine does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.sequence import Request
from loadtest.simulator.clock import VirtualLoop
from loadtest.simulator.replica import SimReplica
from router.spec import Role


@dataclass(frozen=True, slots=True)
class Pairs:
    """So many replicas of the fleet only compute prompts, and so many only decode; all others do both. `bytes_per_s`
    of a link, `setup_s` for each transfer."""

    num_prefill: int
    num_decode: int
    bytes_per_token: int
    bytes_per_s: float
    setup_s: float


def roles(pairs: Pairs, replica_ids: Sequence[str]) -> Mapping[str, Role]:
    """By replica: the first of them compute prompts, the next decode."""
    first, both = pairs.num_prefill, pairs.num_prefill + pairs.num_decode
    return {id: "prefill" if number < first else "decode" for number, id in enumerate(replica_ids[:both])}


@dataclass(eq=False, slots=True)
class Links:
    """`num_moved_tokens` and `num_transfers` so far."""

    loop: VirtualLoop
    pairs: Pairs
    num_moved_tokens: int = 0
    num_transfers: int = 0
    _free_at: dict[str, float] = field(default_factory=dict)

    def fetch(self, source: SimReplica, target: SimReplica, request: Request, on_end: Callable[[], None]) -> None:
        """Call `on_end` when the prompt's KV, as far as it can be had, is in the target's cache."""
        offered = source.offer(request)
        place = target.receive(request, len(offered))
        if place is None:
            source.let_go(offered)
            on_end()
            return
        num_tokens = place.num_new * target.core.scheduler.pool.block_size
        ends_s = self._take(source.id, target.id, num_tokens)
        self.num_moved_tokens += num_tokens
        self.num_transfers += 1

        def settle() -> None:
            source.let_go(offered)
            target.received(request, place)
            on_end()

        self.loop.at(ends_s, settle)

    def _take(self, source_id: str, target_id: str, num_tokens: int) -> float:
        """When a transfer that is asked for now will end."""
        begins_s = max(self.loop.now, self._free_at.get(source_id, 0.0), self._free_at.get(target_id, 0.0))
        ends_s = begins_s + self.pairs.setup_s + num_tokens * self.pairs.bytes_per_token / self.pairs.bytes_per_s
        self._free_at[source_id] = self._free_at[target_id] = ends_s
        return ends_s

    def __repr__(self) -> str:
        return f"<Links {self.num_transfers} transfers of {self.num_moved_tokens} tokens>"
