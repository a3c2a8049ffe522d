"""What a replica serves. Knows OpenAI's model list and our engine's tokenizer document; knows no pools and no state.

Servers differ: SGLang and TensorRT-LLM leave out fields that vLLM gives, and only our engine hands out its tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from router.errors import BadAnswer
from router.replicas.fetch import fetch
from router.spec import ReplicaSpec

MODELS_PATH = "/v1/models"
TOKENIZER_PATH = "/pointsman/tokenizer"

TokenizerDocument = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Card:
    """One entry of a model list. A `parent` marks an adapter; `max_model_len` is in tokens.

    `created` is no part of what it is: vLLM says the time of the question.
    """

    id: str
    parent: str | None = None
    root: str | None = None
    created: int = field(default=0, compare=False)
    owned_by: str = "unknown"
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """What a replica serves: at least one base model. `block_size` in tokens and `num_blocks` in its cache, None while
    they are not known; `engine` is the kind of it, as `load.py` names them."""

    cards: tuple[Card, ...]
    block_size: int | None = None
    max_model_len: int | None = None
    num_blocks: int | None = None
    engine: str | None = None

    @property
    def kv_capacity_tokens(self) -> int | None:
        """Tokens that its cache holds."""
        return None if self.block_size is None or self.num_blocks is None else self.block_size * self.num_blocks

    @property
    def models(self) -> tuple[str, ...]:
        """Ids of the base model: the first names the pool, the others are aliases."""
        return tuple(card.id for card in self.cards if card.parent is None)

    @property
    def adapters(self) -> frozenset[str]:
        return frozenset(card.id for card in self.cards if card.parent is not None)


async def identify(
    session: aiohttp.ClientSession, spec: ReplicaSpec, timeout_s: float
) -> tuple[Identity, TokenizerDocument | None]:
    """Ask for models and tokenizer; the document is None where the engine has none to give. Raises UpstreamError."""
    cards = await list_models(session, spec, timeout_s)
    document = await _read_tokenizer(session, spec, timeout_s)
    said = document if document is not None else {}
    max_model_len = _positive(said.get("max_model_len")) or _shortest(cards)
    return Identity(cards, _positive(said.get("block_size")), max_model_len), document


async def list_models(session: aiohttp.ClientSession, spec: ReplicaSpec, timeout_s: float) -> tuple[Card, ...]:
    """The replica's models and adapters in its own order, base models never absent. Raises UpstreamError."""
    where = f"{spec.id}{MODELS_PATH}"
    answer = await fetch(session, spec, MODELS_PATH, timeout_s)
    if answer.status != 200:
        raise BadAnswer(f"{where} answered with status {answer.status}")
    try:
        listed = msgspec.json.decode(answer.body, type=_ListedModels)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAnswer(f"{where} is not a model list: {error}") from error
    cards = tuple(_card(listed_model) for listed_model in listed.data)
    if all(card.parent is not None for card in cards):
        raise BadAnswer(f"{where} lists no model")
    return cards


class _ListedModel(msgspec.Struct):
    id: str
    parent: str | None = None
    root: object = None
    created: object = None
    owned_by: object = None
    max_model_len: object = None


class _ListedModels(msgspec.Struct):
    data: list[_ListedModel]


def _card(listed: _ListedModel) -> Card:
    return Card(
        id=listed.id,
        parent=listed.parent or None,
        root=listed.root if isinstance(listed.root, str) else None,
        created=int(listed.created) if isinstance(listed.created, int | float) else 0,
        owned_by=listed.owned_by if isinstance(listed.owned_by, str) else "unknown",
        max_model_len=_positive(listed.max_model_len),
    )


async def _read_tokenizer(
    session: aiohttp.ClientSession, spec: ReplicaSpec, timeout_s: float
) -> TokenizerDocument | None:
    answer = await fetch(session, spec, TOKENIZER_PATH, timeout_s)
    if answer.status == 503:
        raise BadAnswer(f"{spec.id}{TOKENIZER_PATH} is not ready")
    if answer.status != 200:
        return None
    try:
        fields = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw])
        tokenizer = fields.pop("tokenizer")
        document = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return None  # some servers answer any path with a page of their own
    # Its text, not its objects: a vocabulary of 150,000 would hold up the event loop for a fifth of a second.
    return document | {"tokenizer": bytes(tokenizer).decode()}


def _shortest(cards: tuple[Card, ...]) -> int | None:
    return min((card.max_model_len for card in cards if card.max_model_len is not None), default=None)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
