"""Policies by name, and how one is put together from named parts. Knows every part of this room by name; decides
nothing itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from router.plugins import PluginError, Registry, open_registry, unknown_name
from router.ports import Filter, Picker, Scorer
from router.routing.filters import HasAdapter, HasRoom, NotTried
from router.routing.pickers import AtRandom, Lowest, LowestRandomTies, PowerOfTwo, RoundRobin
from router.routing.policy import FilterScorePick, NamedScorer
from router.routing.scorers.first_token import FirstToken
from router.routing.scorers.requests import Requests

DEFAULT = "pointsman"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a policy: its name and options. `weight` is for scorers of a blend."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a policy is made of. `filters` come after those that every policy has: not tried, has room, has adapter."""

    picker: Part
    scorers: tuple[Part, ...] = ()
    filters: tuple[Part, ...] = ()


PRESETS: Mapping[str, Recipe] = {
    # Cost in seconds: what the cache saves against the wait there, replica by replica.
    DEFAULT: Recipe(picker=Part("lowest"), scorers=(Part("first-token"),)),
    "round-robin": Recipe(picker=Part("round-robin")),
    "random": Recipe(picker=Part("random")),
    "least-request": Recipe(picker=Part("lowest-random-ties"), scorers=(Part("requests"),)),
    "power-of-two": Recipe(picker=Part("power-of-two")),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts that a recipe can name: ours, those of installed packages, and any by file."""

    filters: Registry[Filter]
    scorers: Registry[Scorer]
    pickers: Registry[Picker]


def open_parts() -> Parts:
    """Raises PluginError where an installed package takes a name of ours."""
    return Parts(
        filters=open_registry(
            "filter", "keep", {"not-tried": NotTried, "has-room": HasRoom, "has-adapter": HasAdapter}
        ),
        scorers=open_registry("scorer", "score", {"first-token": FirstToken, "requests": Requests}),
        pickers=open_registry(
            "picker",
            "pick",
            {
                "lowest": Lowest,
                "lowest-random-ties": LowestRandomTies,
                "round-robin": RoundRobin,
                "random": AtRandom,
                "power-of-two": PowerOfTwo,
            },
        ),
    )


def preset(name: str, parts: Parts, random: Random, max_in_flight: int) -> FilterScorePick:
    """The policy of that name. Raises PluginError, with the nearest name, where there is none."""
    if name not in PRESETS:
        raise unknown_name("policy", name, PRESETS)
    return compose(name, PRESETS[name], parts, random, max_in_flight)


def compose(name: str, recipe: Recipe, parts: Parts, random: Random, max_in_flight: int) -> FilterScorePick:
    """A policy from a recipe. `max_in_flight` is per replica. Raises PluginError where a part is wrong or misfits."""
    given = {"random": random}
    always = (Part("not-tried"), Part("has-room", {"max_in_flight": max_in_flight}), Part("has-adapter"))
    filters = [parts.filters.create(part.name, part.options, given) for part in (*always, *recipe.filters)]
    scorers = [
        NamedScorer(part.name, parts.scorers.create(part.name, part.options, given), part.weight)
        for part in recipe.scorers
    ]
    picker = parts.pickers.create(recipe.picker.name, recipe.picker.options, given)
    try:
        return FilterScorePick(name, filters, scorers, picker)
    except ValueError as error:
        raise PluginError(str(error)) from error
