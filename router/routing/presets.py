"""Policies by name, and how one is put together from named parts. Knows every part of this room by name; decides
nothing itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from random import Random

from router.plugins import PluginError, Registry, open_registry, unknown_name
from router.ports import Filter, Picker, Policy, Scorer
from router.routing.filters import HasAdapter, HasRoom, NotTried
from router.routing.pickers import AtRandom, LowestRandomTies, PowerOfTwo, RoundRobin
from router.routing.pointsman import Pointsman
from router.routing.policy import FilterScorePick, NamedScorer
from router.routing.published.aibrix import MatchWithinDeviation
from router.routing.published.conductor import QueuedPrefill
from router.routing.published.consistent_hash import BoundedRing
from router.routing.published.dispatched_share import DispatchedShare
from router.routing.published.dualmap import TwoHashes
from router.routing.published.dynamo import DynamoBlocks
from router.routing.published.engine_load import KvRoom, QueueRoom
from router.routing.published.lmetric import NewTokensTimesBatch
from router.routing.published.matched_share import MatchedShare
from router.routing.published.no_hit_lru import NoHitLru
from router.routing.published.preble import ExploitOrExplore
from router.routing.published.sglang import CacheAware
from router.routing.published.token_aware import StickyUntilSaturated, UncachedTokens
from router.routing.published.vllm_dp import WaitingAndRunning
from router.routing.recipes import Part, Recipe, Tuned, is_recipe, read_recipe
from router.routing.scorers.requests import Requests

DEFAULT = "pointsman"


_AMONG_EQUALS = Part("lowest-random-ties")

PRESETS: Mapping[str, Recipe] = {
    "round-robin": Recipe(picker=Part("round-robin")),
    "random": Recipe(picker=Part("random")),
    "least-request": Recipe(picker=Part("lowest-random-ties"), scorers=(Part("requests"),)),
    "power-of-two": Recipe(picker=Part("power-of-two")),
    "consistent-hash": Recipe(picker=Part("bounded-ring")),
    "sglang-cache-aware": Recipe(picker=Part("sglang-cache-aware")),
    "dynamo": Recipe(picker=_AMONG_EQUALS, scorers=(Part("dynamo-blocks"),)),
    "llm-d-blend": Recipe(
        picker=_AMONG_EQUALS,
        scorers=(
            Part("dispatched-share", weight=3.0),
            Part("queue-room", weight=2.0),
            Part("kv-room", weight=2.0),
        ),
    ),
    "llm-d-precise": Recipe(
        picker=_AMONG_EQUALS,
        scorers=(Part("matched-share", weight=2.0), Part("queue-room"), Part("kv-room")),
    ),
    "llm-d-token-aware": Recipe(
        picker=_AMONG_EQUALS,
        scorers=(Part("uncached-tokens"),),
        filters=(Part("sticky-until-saturated"),),
    ),
    "lmetric": Recipe(picker=_AMONG_EQUALS, scorers=(Part("new-tokens-times-batch"),)),
    "conductor": Recipe(picker=_AMONG_EQUALS, scorers=(Part("queued-prefill"),)),
    "preble": Recipe(picker=Part("exploit-or-explore")),
    "aibrix-prefix": Recipe(picker=Part("match-within-deviation")),
    "dualmap": Recipe(picker=Part("two-hashes")),
    "vllm-dp": Recipe(picker=_AMONG_EQUALS, scorers=(Part("waiting-and-running"),)),
}


NAMES = (DEFAULT, *PRESETS)

FILTERS: Mapping[str, type[Filter]] = {
    "not-tried": NotTried,
    "has-room": HasRoom,
    "has-adapter": HasAdapter,
    "sticky-until-saturated": StickyUntilSaturated,
}
SCORERS: Mapping[str, type[Scorer]] = {
    "requests": Requests,
    "matched-share": MatchedShare,
    "dispatched-share": DispatchedShare,
    "queue-room": QueueRoom,
    "kv-room": KvRoom,
    "no-hit-lru": NoHitLru,
    "uncached-tokens": UncachedTokens,
    "dynamo-blocks": DynamoBlocks,
    "new-tokens-times-batch": NewTokensTimesBatch,
    "queued-prefill": QueuedPrefill,
    "waiting-and-running": WaitingAndRunning,
}
PICKERS: Mapping[str, type[Picker]] = {
    "lowest-random-ties": LowestRandomTies,
    "round-robin": RoundRobin,
    "random": AtRandom,
    "power-of-two": PowerOfTwo,
    "bounded-ring": BoundedRing,
    "sglang-cache-aware": CacheAware,
    "match-within-deviation": MatchWithinDeviation,
    "two-hashes": TwoHashes,
    "exploit-or-explore": ExploitOrExplore,
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
        filters=open_registry("filter", "keep", FILTERS),
        scorers=open_registry("scorer", "score", SCORERS),
        pickers=open_registry("picker", "pick", PICKERS),
    )


def open_policy(name: str, parts: Parts, random: Random, max_in_flight: int) -> Policy:
    """The policy of that name, or of that recipe file. Raises PluginError, with the nearest name, where there is
    none, and where the recipe is wrong."""
    if is_recipe(name):
        recipe = read_recipe(Path(name))
        if isinstance(recipe, Tuned):
            return tuned(recipe, max_in_flight)
        return compose(recipe.name, recipe, parts, random, max_in_flight)
    return preset(name, parts, random, max_in_flight)


def preset(name: str, parts: Parts, random: Random, max_in_flight: int) -> Policy:
    """The policy of that name. Raises PluginError, with the nearest name, where there is none."""
    if name == DEFAULT:
        return Pointsman(name, max_in_flight)
    if name not in PRESETS:
        raise unknown_name("policy", name, NAMES)
    return compose(name, PRESETS[name], parts, random, max_in_flight)


def tuned(recipe: Tuned, max_in_flight: int) -> Pointsman:
    """Ours with other options than usual. Raises PluginError that names the one that is wrong."""
    ours = Registry("policy", "decide", {DEFAULT: Pointsman}, {})
    made = ours.create(DEFAULT, recipe.options, {"name": recipe.name, "max_in_flight": max_in_flight})
    weights, known = recipe.options.get("weights", {}), [each.name for each in fields(made.weights)]
    for name in weights if isinstance(weights, Mapping) else ():
        if name not in known:
            raise unknown_name(f'weight of policy "{DEFAULT}"', name, known)
        if not 0.0 <= getattr(made.weights, name) < inf:
            raise PluginError(f'the weight "{name}" of policy "{DEFAULT}" must be a number from 0')
    return made


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
