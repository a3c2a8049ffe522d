from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.plugins import PluginError
from router.routing.presets import PRESETS, open_parts, open_policy
from router.routing.recipes import Part, Recipe, Tuned, files_of, read_recipe, written
from tests.router.nouns import make_candidate, make_demand, make_prompt, make_view

OURS = """
name = "ours"
[picker]
type = "lowest-random-ties"
[[filters]]
type = "sticky-until-saturated"
parameters = { peak_tokens_per_s = 100.0 }
[[scorers]]
type = "matched-share"
weight = 2.0
[[scorers]]
type = "requests"
"""
PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
from router.routing.policy import Unit
@dataclass(frozen=True)
class Named:
    favourite: str = "b"
    unit: ClassVar[Unit] = Unit.SHARE
    def score(self, demand, candidates):
        return [float(each.replica.id == self.favourite) for each in candidates]
"""


def at(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_says_parts_options_and_weights(tmp_path: Path) -> None:
    assert read_recipe(at(tmp_path, OURS)) == Recipe(
        picker=Part("lowest-random-ties"),
        scorers=(Part("matched-share", weight=2.0), Part("requests")),
        filters=(Part("sticky-until-saturated", {"peak_tokens_per_s": 100.0}),),
        name="ours",
    )


def test_without_a_name_it_is_that_of_the_file(tmp_path: Path) -> None:
    assert read_recipe(at(tmp_path, '[picker]\ntype = "random"', "mine.toml")).name == "mine"


def test_a_policy_by_file_decides_by_all_its_parts_and_says_its_name(tmp_path: Path) -> None:
    policy = open_policy(str(at(tmp_path, OURS)), open_parts(), Random(1), 8)
    candidates = [make_candidate("idle"), make_candidate("holder", matched_tokens=900, in_flight=1)]
    decision = policy.decide(make_demand(), make_view(candidates))
    assert decision is not None
    assert (decision.replica.id, decision.policy, set(decision.scores)) == (
        "holder",
        "ours",
        {"matched-share", "requests"},
    )
    full = [make_candidate("holder", matched_tokens=900, in_flight=8)]
    assert policy.decide(make_demand(), make_view(full)) is None


def test_a_policy_by_file_says_what_it_is_made_of(tmp_path: Path) -> None:
    assert open_policy(str(at(tmp_path, OURS)), open_parts(), Random(1), 8).about() == {
        "name": "ours",
        "filters": ["NotTried", "HasRoom", "HasAdapter", "StickyUntilSaturated"],
        "scorers": {"matched-share": 0.6667, "requests": 0.3333},
        "unit": "share",
        "picker": "LowestRandomTies",
    }


def test_our_own_policy_by_file_weighs_as_it_says(tmp_path: Path) -> None:
    path = at(tmp_path, 'name = "lazy"\n[pointsman]\nuseful_depth_s = 3.0\nweights = { copy = 50.0 }')
    sticky, usual = (open_policy(name, open_parts(), Random(1), 8) for name in (str(path), "pointsman"))
    fleet = [make_candidate("holder", 640, foreign_tokens=4000), make_candidate("idle")]
    chosen = [policy.decide(make_demand(prompt=make_prompt(700)), make_view(fleet)) for policy in (sticky, usual)]
    assert [None if each is None else (each.policy, each.replica.id) for each in chosen] == [
        ("lazy", "holder"),
        ("pointsman", "idle"),
    ]


def test_a_class_is_looked_for_beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at(tmp_path, PLUGIN, "own.py")
    text = '[picker]\ntype = "lowest-random-ties"\n[[scorers]]\ntype = "own.py:Named"\nparameters = { favourite = "c" }'
    path = at(tmp_path, text)
    monkeypatch.chdir("/")
    policy = open_policy(str(path), open_parts(), Random(1), 8)
    decision = policy.decide(make_demand(), make_view([make_candidate(id) for id in "abc"]))
    assert decision is not None
    assert decision.replica.id == "c"
    assert files_of(path) == [path, tmp_path / "own.py"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "give `picker`, with or without filters and scorers, or `pointsman` by itself"),
        ('[picker]\ntype = "random"\n[pointsman]\n', "give `picker`"),
        ('[pointsman]\n[[scorers]]\ntype = "requests"', "`pointsman` stands by itself"),
        ("[picker", "end of a table declaration"),
        ('[picker]\ntipe = "random"', 'unknown field of `picker` "tipe"; did you mean "type"'),
        ('[picker]\ntype = "random"\n[[scorer]]\ntype = "requests"', 'unknown field "scorer"; did you mean "scorers"'),
        ('[picker]\ntype = "random"\n[[scorers]]\ntype = "requests"\nweigth = 2', 'did you mean "weight"'),
        (
            '[picker]\ntype = "random"\n[[filters]]\ntype = "not-tried"\nweight = 2',
            'unknown field of `filters` "weight"',
        ),
        ('[picker]\ntype = "random"\n[[scorers]]\ntype = "requests"\nweight = "2"', r"\$.scorers\[0\].weight"),
        ('picker = "random"', r"\$.picker"),
        ('name = "a;b"\n[picker]\ntype = "random"', "`name` must be"),
        ('name = "a\\nb"\n[picker]\ntype = "random"', "`name` must be"),
    ],
)
def test_what_is_wrong_is_told_with_its_file_and_field(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PluginError, match=told) as caught:
        read_recipe(at(tmp_path, text))
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[picker]\ntype = "randon"', 'unknown picker "randon"; did you mean "random"'),
        ('[picker]\ntype = "bounded-ring"\nparameters = { num_token = 3 }', 'did you mean "num_tokens"'),
        ('[picker]\ntype = "bounded-ring"\nparameters = { num_tokens = "x" }', 'option "num_tokens" of picker'),
        ('[picker]\ntype = "random"\n[[filters]]\ntype = "has-room"', 'needs the option "max_in_flight"'),
        (
            '[picker]\ntype = "random"\n[[scorers]]\ntype = "requests"\nweight = 0',
            'policy "mine": the weight of scorer',
        ),
        ('[picker]\ntype = "random"\n[[scorers]]\ntype = "queued-prefill"\nweight = 2', "takes no weight"),
        ('[picker]\ntype = "random"\n[[scorers]]\ntype = "no.py:Such"', "no file"),
        (
            "[pointsman]\nuseful_dept_s = 3",
            'unknown option of policy "pointsman" "useful_dept_s"; did you mean "useful_depth',
        ),
        ("[pointsman]\nmax_in_flight = 3", 'unknown option of policy "pointsman" "max_in_flight"'),
        ("[pointsman]\ntie_s = -1", "tie_s must not be negative"),
        ('[pointsman]\ntie_s = "x"', 'option "tie_s" of policy "pointsman"'),
        ("[pointsman]\nweights = 3", 'option "weights" of policy "pointsman"'),
        ("[pointsman]\nweights = { copi = 3 }", 'unknown weight of policy "pointsman" "copi"; did you mean "copy"'),
        ("[pointsman]\nweights = { copy = -3 }", 'the weight "copy" of policy "pointsman" must be a number from 0'),
        ("[pointsman]\nweights = { copy = nan }", 'the weight "copy" of policy "pointsman" must be a number from 0'),
    ],
)
def test_parts_that_are_not_there_or_misfit_are_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PluginError, match=told):
        open_policy(str(at(tmp_path, text)), open_parts(), Random(1), 8)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(PluginError, match=r"cannot read the recipe nowhere/it.toml: No such file"):
        read_recipe(Path("nowhere/it.toml"))


def test_tuned_options_can_be_written_down_and_read_again(tmp_path: Path) -> None:
    recipe = Tuned("ours", {"useful_depth_s": 2.5, "weights": {"copy": 2.0, "room": 0.5}})
    assert read_recipe(at(tmp_path, written(recipe))) == recipe


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_written_down_and_read_again(tmp_path: Path, name: str) -> None:
    recipe = PRESETS[name]
    named = Recipe(recipe.picker, recipe.scorers, recipe.filters, name)
    assert read_recipe(at(tmp_path, written(named))) == named


words = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters=";"), min_size=1, max_size=8)
options = st.dictionaries(
    st.text("abcdef_", min_size=1, max_size=6), st.integers(-5, 5) | st.booleans() | words, max_size=3
)
parts = st.builds(Part, words, options)


@given(parts, st.lists(st.builds(Part, words, options, st.floats(0.1, 9.0))), st.lists(parts), words)
def test_any_recipe_survives_being_written(
    tmp_path_factory: pytest.TempPathFactory, picker: Part, scorers: list[Part], filters: list[Part], name: str
) -> None:
    recipe = Recipe(picker, tuple(scorers), tuple(filters), name)
    assert read_recipe(at(tmp_path_factory.mktemp("any"), written(recipe))) == recipe
