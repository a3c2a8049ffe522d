"""Which models there are, under which names, in which pools. Knows members and their identities; no states, no clock.

All of it is derived anew whenever an identity changes, which is rare; a Pool object lives as long as any replica serves
its model. A replica that is down still counts: names are stable until it is gone from discovery.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router.core import Pool
from router.errors import UnknownModel
from router.replicas.identify import Card, Identity
from router.replicas.member import Member

# The least tokens that a block has, whatever the engine's own: where some replica tells of its blocks, and where all
# that is known is our own dispatches, for which half as many hashes are as good.
LEAST_TOLD_TOKENS = 16
LEAST_GUESSED_TOKENS = 32
MAX_NAMES_SHOWN = 20

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Catalog:
    pools: dict[str, Pool] = field(default_factory=dict)
    _names: dict[str, tuple[Pool, str | None]] = field(default_factory=dict)
    _cards: dict[str, Card] = field(default_factory=dict)

    def rebuild(self, members: Iterable[Member]) -> None:
        """Derive pools and names from the members, and tell each replica its pool."""
        sharing: dict[str, list[tuple[Member, Identity]]] = {}
        for member in members:
            if member.identity is not None:
                sharing.setdefault(member.identity.models[0], []).append((member, member.identity))
        self.pools = {model: self.pools.get(model) or Pool(model) for model in sharing}
        for model, pool in self.pools.items():
            members_of, identities_of = zip(*sharing[model], strict=True)
            _settle(pool, identities_of, is_told=any(member.replica.spec.kv is not None for member in members_of))
            for member in members_of:
                member.replica.pool = pool
        identities = {model: [identity for _, identity in shared] for model, shared in sharing.items()}
        self._names = _name(self.pools, identities)
        self._cards = _collect_cards(identities, self._names)

    def find(self, model: str) -> tuple[Pool, str | None] | None:
        """Pool and adapter behind a name, or None."""
        return self._names.get(model)

    def resolve(self, model: str) -> tuple[Pool, str | None]:
        """Pool and adapter behind a name. Raises UnknownModel."""
        try:
            return self._names[model]
        except KeyError:
            raise UnknownModel(self._unknown(model), param="model") from None

    def models(self) -> list[dict[str, object]]:
        """Every name that resolves, in the shape of OpenAI's and vLLM's /v1/models entries."""
        return [_entry(card) for card in self._cards.values()]

    def _unknown(self, model: str) -> str:
        names = sorted(self._names)
        shown = ", ".join(names[:MAX_NAMES_SHOWN]) or "none"
        more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
        return f"The model `{model}` does not exist. Known models: {shown}{more}."


def _settle(pool: Pool, identities: Sequence[Identity], *, is_told: bool) -> None:
    """What all replicas of a pool can do: the first block size that one says, the shortest of their contexts."""
    sizes = [identity.block_size for identity in identities if identity.block_size is not None]
    if len(set(sizes)) > 1:
        log.warning("pool %s: replicas differ in block size %s, taking %d", pool.model, sorted(set(sizes)), sizes[0])
    least = LEAST_TOLD_TOKENS if is_told else LEAST_GUESSED_TOKENS
    pool.block_size = _at_least(least, sizes[0]) if sizes else least
    lengths = [identity.max_model_len for identity in identities if identity.max_model_len is not None]
    pool.max_model_len = min(lengths, default=None)


def _at_least(least: int, block_size: int) -> int:
    """A multiple of the engine's that is not tiny: SGLang's pages are one token by default, too small to hash each."""
    return block_size * -(-least // block_size)


def _name(pools: Mapping[str, Pool], identities: Mapping[str, list[Identity]]) -> dict[str, tuple[Pool, str | None]]:
    """A pool's own name wins over an alias, that over an adapter; of equals, the one first listed.

    An alias counts only where every replica of the pool answers to it: bodies go through as they are, so the others
    would refuse it.
    """
    names: dict[str, tuple[Pool, str | None]] = {model: (pool, None) for model, pool in pools.items()}
    for model, pool in pools.items():
        shared = frozenset.intersection(*(frozenset(identity.models) for identity in identities[model]))
        for alias in identities[model][0].models:
            if alias in shared:
                names.setdefault(alias, (pool, None))
    for model, pool in pools.items():
        for identity in identities[model]:
            for card in identity.cards:
                if card.parent is not None:
                    names.setdefault(card.id, (pool, card.id))
    return names


def _collect_cards(
    identities: Mapping[str, list[Identity]], names: Mapping[str, tuple[Pool, str | None]]
) -> dict[str, Card]:
    """The card of each name: of the pool that the name leads to, and there the first."""
    cards: dict[str, Card] = {}
    for model, shared in identities.items():
        for identity in shared:
            for card in identity.cards:
                if card.id in names and names[card.id][0].model == model:
                    cards.setdefault(card.id, card)
    return cards


def _entry(card: Card) -> dict[str, object]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "root": card.root or card.id,
        "parent": card.parent,
        "max_model_len": card.max_model_len,
    }
