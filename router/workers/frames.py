"""What the processes of one host say to each other, and how: messages in msgpack, each after its length. Knows shapes;
knows nothing of sockets (`line.py`) or of who acts on what.

Between a worker and the feed, over a unix socket: who is it, what is there, what changed, who was sent what. Between
the supervisor and its processes, over a socket pair each: orders and reports; its end is the end of the other side.
"""

from collections.abc import Mapping, Sequence

import msgspec

from router.core import Headers
from router.prefix.changes import Change
from router.prefix.follower import FeedStatus
from router.replicas.lessons import Lesson
from router.replicas.sighting import Sighting

VERSION = 4
LENGTH_BYTES = 4
# A tokenizer document is at most 64 MiB (`replicas/fetch.py`), a snapshot may hold some.
MAX_FRAME_BYTES = 512 * 2**20


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first word on the wire is the class name."""


class Hello(_Message, frozen=True):
    """A worker to the feed, first of all. The feed closes on any other version than its own."""

    number: int
    version: int = VERSION


class Document(_Message, frozen=True):
    """The tokenizer document of a model, as its first replica handed it out."""

    model: str
    fields: Mapping[str, object]


class Snapshot(_Message, frozen=True):
    """The feed to a worker: all that there is. What is missing from it is gone."""

    sequence: int
    sightings: Sequence[Sighting]
    documents: Sequence[Document]
    version: int = VERSION


class Delta(_Message, frozen=True):
    """What is new since the frame before it; `gone` are ids."""

    sequence: int
    sightings: Sequence[Sighting]
    gone: Sequence[str]
    documents: Sequence[Document]


class Dispatches(_Message, frozen=True):
    """Replica ids, and the block hashes of a prompt that each was sent, packed as 64 bits each; none: forget it."""

    chains: Sequence[tuple[str, bytes]]


class Told(_Message, frozen=True):
    """The feed to a worker: what replicas said of their caches since the frame before it, by replica id."""

    changes: Sequence[tuple[str, Sequence[Change]]]


class Fed(_Message, frozen=True):
    """The feed to a worker: how well a replica tells what it holds, from here on."""

    replica_id: str
    status: FeedStatus


class Learned(_Message, frozen=True):
    """A worker to the feed, and the feed to the others: what was learned of replicas."""

    lessons: Sequence[Lesson]


class Suspect(_Message, frozen=True):
    """A worker to the feed: a request failed there, look at once."""

    replica_id: str


class Cooled(_Message, frozen=True):
    """A worker to the feed: this replica has too much to do."""

    replica_id: str
    until: float


class Relist(_Message, frozen=True):
    """A worker to the feed: the adapters of this replica have changed, ask it for them."""

    replica_id: str


class Drain(_Message, frozen=True):
    """The supervisor to the feed."""

    replica_id: str
    on: bool


class Find(_Message, frozen=True):
    """The supervisor to the feed: who holds these blocks, packed as 64 bits each? `number` comes back."""

    number: int
    blocks: bytes


class Found(_Message, frozen=True):
    """The feed's answer: leading blocks by replica id, and those of them that are in device memory."""

    number: int
    matches: Mapping[str, int]
    on_device: Mapping[str, int]


class Export(_Message, frozen=True):
    """The supervisor to the feed: all that is known of caches, for a router that begins."""

    number: int


class Exported(_Message, frozen=True):
    """The feed's answer to either, as `warming.py` packs it."""

    number: int
    packed: bytes


class Recall(_Message, frozen=True):
    """The supervisor to the feed: all that workers have learned of replicas; what is exported are lessons."""

    number: int


class Explain(_Message, frozen=True):
    """The supervisor to a worker: what would be decided for this body, with these headers?"""

    number: int
    body: bytes
    headers: Headers


class Explained(_Message, frozen=True):
    """The worker's answer, as its admin page would give it: JSON, and its status."""

    number: int
    status: int
    answer: bytes


class Drained(_Message, frozen=True):
    """The feed's answer, once the workers have been told: by which frame."""

    sequence: int


class Open(_Message, frozen=True):
    """The supervisor to a worker: take connections of this slot, too."""

    slot: int


class Shut(_Message, frozen=True):
    """The supervisor to a worker: take no more connections of this slot."""

    slot: int


class Retire(_Message, frozen=True):
    """The supervisor to a worker: another has taken your place; serve your clients to the end, and leave."""


class Serving(_Message, frozen=True):
    """A worker to the supervisor: its ports are open and it knows the replicas."""


class Ask(_Message, frozen=True):
    """The supervisor to a worker: send a report now."""


class Family(_Message, frozen=True):
    """One metric: its samples are (name, labels, value)."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[str, Mapping[str, str], float]]


class Report(_Message, frozen=True):
    """A worker to the supervisor: what its admin pages would show."""

    is_ready: bool
    readiness: Mapping[str, object]
    replicas: Sequence[Mapping[str, object]]
    models: Sequence[Mapping[str, object]]
    families: Sequence[Family]


ToFeed = Hello | Suspect | Cooled | Relist | Dispatches | Learned
FromFeed = Snapshot | Delta | Dispatches | Told | Fed | Learned
Order = Open | Shut | Retire | Ask | Drain | Find | Export | Recall | Explain
News = Serving | Report | Drained | Found | Exported | Explained
Message = ToFeed | FromFeed | Order | News

to_feed: "msgspec.msgpack.Decoder[ToFeed]" = msgspec.msgpack.Decoder(ToFeed)
from_feed: "msgspec.msgpack.Decoder[FromFeed]" = msgspec.msgpack.Decoder(FromFeed)
order: "msgspec.msgpack.Decoder[Order]" = msgspec.msgpack.Decoder(Order)
news: "msgspec.msgpack.Decoder[News]" = msgspec.msgpack.Decoder(News)
_encoder = msgspec.msgpack.Encoder()


def pack(message: Message) -> bytes:
    """A whole frame."""
    return frame(_encoder.encode(message))


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload
