"""Core nouns for tests, each with what a test does not care about filled in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from router.choice import View
from router.core import Candidate, Demand, Pool, Prompt, Replica, ReplicaState, Request, Standing, Surface
from router.spec import ReplicaSpec


@dataclass(eq=False, slots=True)
class FakeClock:
    """A clock that stands until it is moved."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def make_request(id: str = "r", **fields: object) -> Request:
    values: dict[str, object] = {
        "id": id,
        "surface": Surface.CHAT,
        "model": "m",
        "body": b"{}",
        "arrived": 0.0,
        "deadline": 1e9,
        **fields,
    }
    return Request(**values)  # type: ignore[arg-type]


def make_prompt(num_tokens: int = 64, num_template_tokens: int = 0, first_hash: int = 0) -> Prompt:
    """A prompt whose block hashes are first_hash, first_hash + 1, ..."""
    hashes = tuple(range(first_hash, first_hash + num_tokens // 16))
    return Prompt(num_tokens, hashes, block_size=16, num_template_tokens=num_template_tokens)


def make_demand(
    id: str = "r",
    *,
    pool: Pool | None = None,
    prompt: Prompt | None = None,
    adapter: str | None = None,
    tried: frozenset[str] = frozenset(),
    standing: Standing | None = None,
    **fields: object,
) -> Demand:
    return Demand(make_request(id, **fields), pool or Pool("m"), prompt or make_prompt(), adapter, tried, standing)


def make_replica(name: str = "a", **fields: object) -> Replica:
    """`tokens_per_s` and `base_s` are of its step model."""
    replica = Replica(ReplicaSpec(f"http://{name}"), state=ReplicaState.READY)
    token_s = 1 / float(str(fields.pop("tokens_per_s", 2000.0)))
    base_s = float(str(fields.pop("base_s", 0.005)))
    replica.step = replace(replica.step, token_s=token_s, base_s=base_s)
    for key, value in fields.items():
        setattr(replica, key, value)
    return replica


def make_candidate(name: str = "a", matched_tokens: int = 0, cached_blocks: int = 0, **fields: object) -> Candidate:
    return Candidate(make_replica(name, **fields), matched_tokens, cached_blocks)


def make_view(candidates: Sequence[Candidate], now: float = 0.0, expected_output_tokens: float = 0.0) -> View:
    """What a decision sees of these, in blocks of 16 tokens."""
    matches = {each.replica.id: -(-each.matched_tokens // 16) for each in candidates if each.matched_tokens}
    deepest_first = dict(sorted(matches.items(), key=lambda item: -item[1]))
    held = {each.replica.id: each.cached_blocks for each in candidates}
    replicas = tuple(each.replica for each in candidates)
    return View(now, replicas, deepest_first, deepest_first, held.__getitem__, expected_output_tokens)
