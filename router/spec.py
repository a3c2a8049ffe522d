"""What is said of a replica before anybody has asked it: where it is, and how it is to be used. Knows values only."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Merge:
    """Requests of one prompt each are gathered for `wait_s` seconds, or until there are `most`; they go as one call."""

    wait_s: float
    most: int = 32


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What discovery says of a replica. `url` has no trailing slash; `tokenizer` is a path on this host, or `engine`
    where the replica's own /tokenize is asked. `kv` is where its KV events come from and `replay` where they can be had
    again, both as URLs; `rank` is its data-parallel rank, where it is one of several; `merge` where it does not batch
    by itself. `role` is the half of the work that it is for, where it is for one; `bootstrap_port` is SGLang's.
    `round_trip_s` is how far away it is, where that is not to be measured. `models` makes it an outside provider: it is
    asked for answers and nothing else, and `url` is what SDKs call its base URL."""

    url: str
    api_key: str | None = None
    tokenizer: str | None = None
    kv: str | None = None
    replay: str | None = None
    rank: int | None = None
    merge: Merge | None = None
    role: Role | None = None
    bootstrap_port: int | None = None
    models: tuple[str, ...] = ()
    round_trip_s: float | None = None

    @property
    def id(self) -> str:
        return self.url.split("://", 1)[-1]
