from pathlib import Path

import pytest

from router.plugins import PluginError
from router.policies import show_policies
from router.routing.pointsman import Pointsman
from router.routing.presets import FILTERS, NAMES, PICKERS, PRESETS, SCORERS, tuned
from router.routing.recipes import Recipe, Tuned, read_recipe


def test_the_list_has_every_policy_and_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_policies(None) == 0
    told = capsys.readouterr().out
    listed = {line.strip().partition(":")[0].partition("(")[0].partition(" [")[0] for line in told.splitlines()}
    assert {*NAMES, *FILTERS, *SCORERS, *PICKERS} <= listed
    assert "bounded-ring(num_tokens=256, max_load_ratio=1.25): " in told
    assert "queued-prefill [seconds]: " in told


@pytest.mark.parametrize("name", PRESETS)
def test_each_is_shown_as_a_recipe_to_start_from(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_policies(name)
    path = tmp_path / "copy.toml"
    path.write_text(capsys.readouterr().out)
    recipe = read_recipe(path)
    assert isinstance(recipe, Recipe)
    assert (recipe.picker, recipe.scorers, recipe.filters) == (
        PRESETS[name].picker,
        PRESETS[name].scorers,
        PRESETS[name].filters,
    )
    assert show_policies(str(path)) == 0


def test_one_that_does_not_fit_together_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[picker]\ntype = "random"\n[[scorers]]\ntype = "requests"\n[[scorers]]\ntype = "queued-prefill"\n')
    with pytest.raises(PluginError, match='policy "mine" mixes units: queued-prefill in seconds, requests in share'):
        show_policies(str(path))
    with pytest.raises(PluginError, match='did you mean "preble"'):
        show_policies("prebel")


def test_ours_is_shown_with_its_weights_and_can_be_run_with_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_policies("pointsman")
    told = capsys.readouterr().out
    path = tmp_path / "copy.toml"
    path.write_text(told)
    recipe = read_recipe(path)
    assert isinstance(recipe, Tuned)
    assert tuned(recipe, 8).about() == Pointsman("pointsman", 8).about()
    path.write_text(told.replace('"pointsman"', '"mine"').replace("useful_depth_s = 8.0", "useful_depth_s = 3.0"))
    recipe = read_recipe(path)
    assert isinstance(recipe, Tuned)
    assert tuned(recipe, 8).about() == Pointsman("mine", 8, useful_depth_s=3.0).about()
