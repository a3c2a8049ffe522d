"""The nouns of the router, and its glossary. Knows no I/O, no clock, and of our files only what is said of a
replica beforehand (`spec.py`) and how its steps are timed.

request    one call of a client, whatever transport it came by; `Request`.
pool       replicas that serve the same model and share tokenizer, template and block size; `Pool`.
prompt     what the prefix room learned of a request's input for one pool: length and KV block hashes; `Prompt`.
demand     a request as the queue and the policy see it: its pool, adapter, prompt, replicas tried; `Demand`.
replica    one engine server (never worker, backend, endpoint or pod); `Replica`.
load       what a replica last reported of itself, with its time; `Load`.
candidate  a replica that could take a demand, and how much of the prompt it holds; `Candidate`.
decision   the replica chosen, and why; `Decision`. What it goes by is in `choice.py`.
lease      the reservation of a decision, released exactly once with an `Outcome`; `Lease`.
attempt    one try of a request on one replica; `Attempt`.
band       a priority class; `Band`. standing: who asks, as far as order goes; `Standing`.
flow       a tenant, or the part of it that a header names: those that share a pool fairly.
Times are seconds of one monotonic clock unless a name says otherwise; tokens are counts. What is made anew for each
request is a msgspec Struct: a frozen dataclass would cost eight times as much.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum

import msgspec

from router.spec import ReplicaSpec
from router.steps import StepModel

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, and values."""


class Outcome(StrEnum):
    """How a request or a lease ended; it is its own metrics label."""

    OK = "ok"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CLIENT_GONE = "client_gone"
    UPSTREAM_FAILED = "upstream_failed"
    CUT_MID_STREAM = "cut_mid_stream"


class Surface(StrEnum):
    """The inference routes of the data port; each is its own path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"


class Band(IntEnum):
    """Priority class, the first to be served first; what each is promised all the same is in `admission/bands.py`."""

    HIGH = 0
    NORMAL = 1
    LOW = 2
    BULK = 3


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Who asks, as far as order goes. Tenants share by `weight`; the flows of a tenant share what is the tenant's."""

    tenant: str = "default"
    flow: str = ""
    band: Band = Band.NORMAL
    weight: float = 1.0


class Slo(msgspec.Struct, frozen=True, gc=False):
    """What the client hopes for: seconds to its first token, and between tokens; None where it does not say."""

    ttft_s: float | None = None
    tpot_s: float | None = None


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What the headers of a request say of who asks, and for what; None where they do not. `other_band` is by another
    router's name: the body wins over it."""

    credential: str | None = None
    tenant: str | None = None
    band: Band | None = None
    other_band: Band | None = None
    timeout_s: float | None = None


class Request(msgspec.Struct, frozen=True, gc=False):
    """One call of a client. `surface` is one of ours, or the target of an engine's route that is passed on as it is.
    `body` holds the bytes as received; `messages` and `prompt` (in embeddings: `input`) are decoded views of it.
    A stream `tells_usage` where that was asked for; who `names_tier` is told in which service tier it was served.
    `standing` is who asks where that was settled before, as a job's was when it was submitted."""

    id: str
    surface: Surface | str
    model: str
    body: bytes
    arrived: float
    deadline: float
    is_stream: bool = False
    tells_usage: bool = False
    names_tier: bool = False
    messages: Sequence[Mapping[str, object]] | None = None
    prompt: object = None
    template_options: Mapping[str, object] = {}
    cache_salt: str | None = None
    priority: int = 0
    band: Band | None = None
    max_tokens: int | None = None
    session: str | None = None
    slo: Slo | None = None
    headers: Headers = ()
    asked: Asked | None = None
    standing: Standing | None = None


@dataclass(eq=False, slots=True)
class Pool:
    """What the replicas of one model share. `max_model_len` is in tokens, None while no replica has said it."""

    model: str
    block_size: int = 16
    max_model_len: int | None = None

    def __repr__(self) -> str:
        return f"<Pool {self.model} blocks of {self.block_size}>"


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """Length and chained block hashes of a prompt under one pool's tokenizer.

    `num_template_tokens` is the length of the leading part that every chat of the pool shares (the template's own
    text): holding it is no reason to prefer a replica. `is_exact` is False where lengths are guessed from bytes.
    """

    num_tokens: int
    block_hashes: Sequence[int]
    block_size: int
    num_template_tokens: int = 0
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """A replica's own report. `queued_tokens`: prompt tokens not yet computed; `computed_tokens`: those that were since
    it started. None where the engine does not say."""

    at: float
    running: int
    waiting: int
    kv_used_ratio: float
    queued_tokens: int | None = None
    computed_tokens: int | None = None


class ReplicaState(Enum):
    """Life of a replica as health sees it; the transition table is in `replicas/health.py`."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    ASLEEP = "asleep"
    DRAINING = "draining"


def _shares_nothing(_: Prompt) -> int:
    return 0


@dataclass(eq=False, slots=True)
class Replica:
    """One engine server. The replicas room alone writes it; all others read.

    `in_flight` counts open leases; `prefilling` those without a first token, `prefilling_tokens` their uncached prompt
    tokens; `silent` are those of them that will not tell of a first token, as their answer comes in one piece.
    `prefilling_s` is the time that the others' prefill was expected to take, `prefilled_at` when the last of it should
    end. `context_tokens` are the prompt tokens of those that decode. All of them hold `held_tokens` of prompts, what
    they share counted once, of which `shared_tokens(prompt)` are a prompt's own; `awaited_tokens` of output are
    expected. `sibling_*` are the same of the other workers on this host; `foreign_*` is what its last report shows
    beyond what we and they sent; `foreign_context_tokens` is what all others hold beyond ours, and `context_tokens` has
    it too. `step` is learned, and so are `kv_capacity_tokens`, None while nobody has said it, and `adapter_load_s`.
    `resident_adapters` are those that need no loading, as far as we know, and `num_free_adapter_slots` hold none that
    is at work: below 0, so many adapters wait for one.
    """

    spec: ReplicaSpec
    pool: Pool | None = None
    models: tuple[str, ...] = ()
    adapters: frozenset[str] = frozenset()
    engine: str | None = None
    state: ReplicaState = ReplicaState.STARTING
    load: Load | None = None
    in_flight: int = 0
    prefilling: int = 0
    prefilling_tokens: int = 0
    silent: int = 0
    sibling_in_flight: int = 0
    sibling_prefilling: int = 0
    sibling_prefilling_tokens: int = 0
    foreign_requests: int = 0
    foreign_tokens: int = 0
    foreign_context_tokens: int = 0
    prefilling_s: float = 0.0
    prefilled_at: float = 0.0
    context_tokens: int = 0
    held_tokens: int = 0
    awaited_tokens: float = 0.0
    shared_tokens: Callable[[Prompt], int] = _shares_nothing
    kv_capacity_tokens: int | None = None
    step: StepModel = field(default_factory=StepModel)
    adapter_load_s: float = 0.05
    resident_adapters: Collection[str] = ()
    num_free_adapter_slots: int = 1
    round_trip_s: float = 0.0
    last_used: float = 0.0
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.spec.id

    @property
    def num_requests(self) -> int:
        """Open requests of ours, our siblings and others."""
        return self.in_flight + self.sibling_in_flight + self.foreign_requests

    @property
    def num_running(self) -> int:
        """Of those, the ones that are not known to wait for their first token."""
        num_requests = self.in_flight + self.sibling_in_flight + self.foreign_requests
        return num_requests - self.prefilling - self.sibling_prefilling + self.silent

    @property
    def prefill_tokens_per_s(self) -> float:
        """New prompt tokens a second, without attention to those before them."""
        return 1.0 / self.step.token_s

    @property
    def queued_prefill_s(self) -> float:
        """Prefill that was queued there and has not ended, as if none of it had begun."""
        return self.prefilling_s + (self.sibling_prefilling_tokens + self.foreign_tokens) * self.step.token_s

    @property
    def expected_wait_s(self) -> float:
        """Seconds until a request sent now would begin its prefill: what is queued, and a step of those running."""
        num_running = self.num_running
        step_s = self.step.decode_s(num_running, self.context_tokens) if num_running > 0 else 0.0
        return self.queued_prefill_s + step_s

    def __repr__(self) -> str:
        return f"<Replica {self.id} {self.state.name} {self.in_flight} in flight>"


class Demand(msgspec.Struct, frozen=True, gc=False):
    """A request as the queue and the policy see it. `tried` holds ids of replicas that already failed it; `standing` is
    None where nobody asked who it is: then the request's own priority stands. `num_displaced`: how often it gave its
    place to a higher band."""

    request: Request
    pool: Pool
    prompt: Prompt
    adapter: str | None = None
    tried: frozenset[str] = frozenset()
    standing: Standing | None = None
    num_displaced: int = 0


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A replica that could take a demand: tokens of the prompt in its KV cache, blocks that it holds in all."""

    replica: Replica
    matched_tokens: int = 0
    cached_blocks: int = 0


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The replica chosen and why. `scores` maps scorer name to the chosen replica's score; `prefill_s` is the time
    that its uncached prompt tokens should take there, `output_tokens` are expected."""

    replica: Replica
    policy: str
    matched_tokens: int
    uncached_tokens: int
    expected_wait_s: float
    scores: Mapping[str, float] = {}
    prefill_s: float = 0.0
    output_tokens: float = 0.0

    @property
    def reason(self) -> str:
        """One line for the `x-pointsman-reason` header."""
        wait_ms = self.expected_wait_s * 1e3
        return f"policy={self.policy}; matched_tokens={self.matched_tokens}; expected_wait_ms={wait_ms:.1f}"


class Lease(msgspec.Struct, eq=False):
    """The reservation of a decision: held from the choice until the body ends, released exactly once.

    `output_tokens`, where the replica has said them, are set before the release: speeds and lengths are learned there.
    `charged_tokens` is what its flow was charged for it so far, at `charge_rate`; `on_displaced()` makes it give its
    place up, for a higher band and before its first byte.
    """

    demand: Demand
    decision: Decision
    taken_at: float
    on_started: Callable[["Lease"], None]
    on_released: Callable[["Lease"], None]
    outcome: Outcome | None = None
    error: BaseException | None = None
    has_started: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    output_tokens: int | None = None
    charged_tokens: float = 0.0
    charge_rate: float = 0.0
    on_displaced: Callable[[], None] | None = None
    listeners: list[Callable[["Lease"], None]] = []

    @property
    def replica(self) -> Replica:
        return self.decision.replica

    @property
    def decode_s(self) -> float | None:
        """From the first token to the end; None before the end, and where there was no first token."""
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at

    def when_released(self, callback: Callable[["Lease"], None]) -> None:
        """Call this as well, after the counts have been given back."""
        self.listeners.append(callback)

    def start(self) -> None:
        """The first content byte came: the prompt is computed. Later calls do nothing."""
        if not self.has_started:
            self.has_started = True
            self.on_started(self)

    def release(self, outcome: Outcome, error: BaseException | None = None) -> None:
        """End the reservation. Raises RuntimeError on a second call: a count would go wrong."""
        if self.outcome is not None:
            raise RuntimeError(f"{self!r} was already released")
        self.outcome, self.error = outcome, error
        self.on_released(self)
        for listener in self.listeners:
            listener(self)

    def abandon(self, error: BaseException) -> None:
        """What held it is left by this: a cancel is the client's leaving, all else a failure."""
        self.release(Outcome.UPSTREAM_FAILED if isinstance(error, Exception) else Outcome.CLIENT_GONE, error)

    def __repr__(self) -> str:
        state = "open" if self.outcome is None else self.outcome
        return f"<Lease {self.demand.request.id} on {self.replica.id} {state}>"


class Whereabouts(msgspec.Struct, frozen=True, gc=False):
    """Of one who waits for a place: about how many are served before it, itself included, and how long that takes,
    where the pace is known."""

    position: int
    eta_s: float | None


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try on one replica: what goes over the wire. Timeouts in seconds; `headers` lack only the request's id."""

    replica: Replica
    request_id: str
    path: str
    headers: Headers
    body: bytes
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    deadline: float | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a request used, as far as the replica said: tokens, and seconds since arrival."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    first_token_s: float | None = None
    total_s: float = 0.0
