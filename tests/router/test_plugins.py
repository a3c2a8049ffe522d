from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random

import pytest

from router.plugins import PluginError, Registry, open_registry, unknown_name


@dataclass(eq=False, slots=True)
class Near:
    random: Random
    limit: int
    weight: float = 1.0
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("limit must be at least 1")

    def pick(self) -> int:
        return self.limit


@dataclass
class Far:
    def keep(self) -> bool:
        return True


def registry(**outside: str) -> Registry[Near]:
    entries = {name: EntryPoint(name, value, "pointsman.pickers") for name, value in outside.items()}
    return Registry("picker", "pick", {"near": Near}, entries)


GIVEN = {"random": Random(1), "clock": None}


def test_options_become_constructor_fields_and_given_ones_fill_the_rest() -> None:
    made = registry().create("near", {"limit": 3, "weight": 2, "names": ["x"]}, GIVEN)
    assert (made.limit, made.weight, made.names) == (3, 2.0, ["x"])
    assert made.random is GIVEN["random"]


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(PluginError, match='unknown picker "naer"; did you mean "near"'):
        registry().create("naer")


def test_a_name_like_no_other_lists_what_is_known() -> None:
    assert str(unknown_name("policy", "zzz", ["b", "a"])) == 'unknown policy "zzz"; known: a, b'


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    with pytest.raises(PluginError, match='option of picker "near" "limt"; did you mean "limit"'):
        registry().create("near", {"limt": 3}, GIVEN)


def test_a_field_that_is_ours_to_fill_is_no_option() -> None:
    with pytest.raises(PluginError, match='"random"'):
        registry().create("near", {"limit": 1, "random": 7}, GIVEN)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(PluginError, match='picker "near" needs the option "limit"'):
        registry().create("near", {}, GIVEN)


def test_a_value_of_the_wrong_type_names_the_option() -> None:
    with pytest.raises(PluginError, match='option "limit" of picker "near": Expected `int`, got `str`'):
        registry().create("near", {"limit": "3"}, GIVEN)


def test_a_value_out_of_range_says_so() -> None:
    with pytest.raises(PluginError, match='picker "near": limit must be at least 1'):
        registry().create("near", {"limit": 0}, GIVEN)


def test_an_entry_point_is_loaded_when_its_name_is_asked_for() -> None:
    found = registry(other=f"{__name__}:Near", broken="no_such_module:X")
    assert found.names == ["broken", "near", "other"]
    assert found.find("other").__name__ == "Near"
    with pytest.raises(PluginError, match=r'"broken" \(no_such_module:X\) does not load'):
        found.find("broken")


def test_a_class_of_another_kind_is_refused() -> None:
    with pytest.raises(PluginError, match="has no method `pick`"):
        registry(other=f"{__name__}:Far").find("other")
    with pytest.raises(PluginError, match="is not a dataclass"):
        registry(other=f"{__name__}:registry").find("other")


def test_a_package_cannot_take_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = EntryPoint("near", "x:Y", "pointsman.pickers")
    groups = {"pointsman.pickers": (taken,), "pointsman.scorers": ()}
    monkeypatch.setattr("router.plugins.entry_points", lambda group: groups[group])
    assert open_registry("scorer", "score", {"near": Near}).names == ["near"]
    with pytest.raises(PluginError, match='picker "near" of x:Y has a name that is taken'):
        open_registry("picker", "pick", {"near": Near})


def test_a_plug_in_by_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass(slots=True)\n"
        "class Mine:\n"
        "    size: int = 2\n"
        "    def pick(self): return self.size\n"
    )
    found: Registry[Near] = registry()
    assert found.create(f"{path}:Mine", {"size": 5}, GIVEN).pick() == 5
    with pytest.raises(PluginError, match=r'unknown class in .*mine\.py "Mien"; did you mean "Mine"'):
        found.find(f"{path}:Mien")


def test_a_file_that_is_absent_or_broken_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(PluginError, match=r"no file .*absent\.py"):
        registry().find(f"{tmp_path}/absent.py:X")
    with pytest.raises(PluginError, match=r"broken\.py\" does not load: ZeroDivisionError"):
        registry().find(f"{broken}:X")
