"""`pointsman policies`: which policies there are, what they are made of, and what one of one's own can be made of.
Knows presets, recipes and parts; runs no router."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from random import Random
from typing import Any, cast

from router.plugins import PluginError, Registry, unknown_name
from router.routing.pointsman import Pointsman
from router.routing.presets import DEFAULT, NAMES, PRESETS, Parts, compose, open_parts, tuned
from router.routing.recipes import Recipe, Tuned, is_recipe, read_recipe, written

# What is filled by the router, and no parameter.
_GIVEN = ("random",)
_MAX_IN_FLIGHT = 256


def show_policies(policy: str | None) -> int:
    """Print all there is; of one policy, by name or file, its recipe, once it is known to fit together. Raises
    PluginError."""
    parts = open_parts()
    print("\n".join(_listed(parts)) if policy is None else _shown(policy, parts))
    return 0


def _shown(policy: str, parts: Parts) -> str:
    if policy == DEFAULT:
        recipe: Recipe | Tuned = _ours()
    else:
        recipe = read_recipe(Path(policy)) if is_recipe(policy) else _preset(policy)
    if isinstance(recipe, Tuned):
        tuned(recipe, _MAX_IN_FLIGHT)
        return f"# one cost in seconds, `router/routing/cost.py`, and what its terms weigh\n{written(recipe)}".rstrip()
    made = compose(recipe.name, recipe, parts, Random(), _MAX_IN_FLIGHT)
    unit = "" if made.unit is None else f", in {made.unit}"
    return f"# picked by {recipe.picker.name}{unit}\n{written(recipe)}".rstrip()


def _ours() -> Tuned:
    """Its options as they usually are; of some, nothing means that they are found out."""
    made = Pointsman(DEFAULT, _MAX_IN_FLIGHT)
    values = {each.name: getattr(made, each.name) for each in fields(Pointsman) if each.init}
    del values["name"], values["max_in_flight"]
    values["weights"] = asdict(made.weights)
    return Tuned(DEFAULT, {name: value for name, value in values.items() if value is not None})


def _preset(name: str) -> Recipe:
    if name not in PRESETS:
        raise unknown_name("policy", name, NAMES)
    recipe = PRESETS[name]
    return Recipe(recipe.picker, recipe.scorers, recipe.filters, name)


def _listed(parts: Parts) -> Iterator[str]:
    yield "POLICIES (`pointsman policies NAME` prints one as a recipe to start from: serve --policy FILE.toml)"
    yield f"  {DEFAULT}: ours, and what is taken where nothing is said"
    for name, recipe in PRESETS.items():
        made = [*recipe.filters, *recipe.scorers, recipe.picker]
        yield f"  {name}: {', '.join(part.name for part in made)}"
    kinds: Sequence[tuple[str, Registry[Any]]] = (
        ("FILTERS", parts.filters),
        ("SCORERS", parts.scorers),
        ("PICKERS", parts.pickers),
    )
    for title, registry in kinds:
        yield f"{title} (or path/to/file.py:Class; how one is written: `router/plugins.py`, `router/ports.py`)"
        for name in registry.names:
            yield f"  {name}{_described(registry, name)}"


def _described(registry: Registry[Any], name: str) -> str:
    """Parameters, unit, and the first sentence of what its author says of it."""
    try:
        found = registry.find(name)
    except PluginError as error:  # an installed package's: the others can be shown
        return f": {error}"
    options = [
        each.name if each.default is MISSING and each.default_factory is MISSING else f"{each.name}={_default(each)}"
        for each in fields(cast(Any, found))
        if each.init and each.name not in _GIVEN
    ]
    unit = getattr(found, "unit", None)
    about = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
    taken, measured = f"({', '.join(options)})" if options else "", f" [{unit}]" if unit else ""
    return f"{taken}{measured}: {about}"


def _default(option: Any) -> object:
    return option.default if option.default is not MISSING else option.default_factory()
