"""Core nouns for tests, each with what a test does not care about filled in."""

from dataclasses import dataclass

from router.core import Candidate, Demand, Pool, Prompt, Replica, ReplicaSpec, ReplicaState, Request, Standing, Surface


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
    replica = Replica(ReplicaSpec(f"http://{name}"), state=ReplicaState.READY)
    for key, value in fields.items():
        setattr(replica, key, value)
    return replica


def make_candidate(name: str = "a", matched_tokens: int = 0, cached_blocks: int = 0, **fields: object) -> Candidate:
    return Candidate(make_replica(name, **fields), matched_tokens, cached_blocks)
