"""Names that operators give to models: aliases, splits between models by weight, and who stands in for whom. Knows
requests and names; knows no pool, no replica and no key.

An alias is resolved once, before anything else is done for a request; in a split a session stays with its model. The
body that is sent names the model that was chosen: no engine need know the alias.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import xxhash

from router.core import Request
from router.forms import for_model

MAX_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Share:
    """One model of a split, and its weight in it."""

    model: str
    weight: float


@dataclass(frozen=True, slots=True)
class Names:
    """`aliases` maps a name to the models behind it; `fallbacks` a model to those tried instead of it, in order, where
    it cannot be served."""

    aliases: Mapping[str, Sequence[Share]] = field(default_factory=dict)
    fallbacks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.aliases or self.fallbacks)

    def named(self, request: Request) -> Request:
        """The request with the model that its name stands for."""
        shares = self.aliases.get(request.model)
        return request if shares is None else renamed(request, _pick(shares, request.session or request.id))

    def stand_ins(self, model: str) -> Sequence[str]:
        return self.fallbacks.get(model, ())

    def listed(self, entries: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """The entries of /v1/models, with one for each alias of which some model is there."""
        by_id = {entry["id"]: entry for entry in entries}
        aliases = [
            {**found, "id": name, "root": found["id"]}
            for name, shares in self.aliases.items()
            if name not in by_id and (found := next((by_id[s.model] for s in shares if s.model in by_id), None))
        ]
        return [*entries, *aliases]


def renamed(request: Request, model: str) -> Request:
    """The same request for another model: every other value of its body keeps its very bytes."""
    if model == request.model:
        return request
    return msgspec.structs.replace(request, model=model, body=for_model(request.body, model))


def parse_names(aliases: Iterable[str], fallbacks: Iterable[str]) -> Names:
    """From `NAME=MODEL[:WEIGHT][,MODEL[:WEIGHT]]` and `MODEL=OTHER[,OTHER]`. Raises ValueError that quotes what is
    wrong. A weight is behind the last colon: models may have colons in their names where a weight follows."""
    found: dict[str, Sequence[Share]] = {}
    for text in aliases:
        name, models = _split(text)
        if name in found:
            raise ValueError(f"the alias `{name}` is there twice")
        found[name] = [_share(model, text) for model in models]
    for name, shares in found.items():
        for share in shares:
            if share.model in found:
                raise ValueError(f"the alias `{name}` leads to `{share.model}`, which is an alias itself")
    instead: dict[str, Sequence[str]] = {}
    for text in fallbacks:
        model, others = _split(text)
        if model in others or model in instead or len(others) > MAX_CHAIN:
            raise ValueError(f"`{text}` names a model twice, or more than {MAX_CHAIN}")
        instead[model] = others
    return Names(found, instead)


def _split(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    parts = [part.strip() for part in rest.split(",")]
    if not name.strip() or not equals or not all(parts):
        raise ValueError(f"`{text}` is not of the form NAME=MODEL[,MODEL]")
    return name.strip(), parts


def _share(text: str, whole: str) -> Share:
    model, colon, weight = text.rpartition(":")
    try:
        share = Share(model, float(weight)) if colon else Share(text, 1.0)
    except ValueError:
        share = Share(text, 1.0)  # a colon of the model's own name
    if not share.model or not 0.0 < share.weight < float("inf"):
        raise ValueError(f"`{whole}`: the weight of `{share.model}` must be above 0")
    return share


def _pick(shares: Sequence[Share], key: str) -> str:
    """The same for the same key, in every router."""
    if len(shares) == 1:
        return shares[0].model
    point = xxhash.xxh3_64_intdigest(key.encode("utf-8", "replace")) / 2**64 * sum(share.weight for share in shares)
    for share in shares:
        point -= share.weight
        if point < 0.0:
            return share.model
    return shares[-1].model
