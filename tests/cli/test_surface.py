"""What others build on: the public names, the tree of errors, and walls that no room stands outside of."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import advisor
from advisor import errors

ROOT = Path(__file__).resolve().parents[2]

PUBLIC = [
    "Answer",
    "Mesh",
    "MethodSetting",
    "MomadviseError",
    "Policy",
    "PolicyCheck",
    "Reduction",
    "Training",
    "UserError",
    "__version__",
    "apply_policy",
    "check",
    "load_policy_file",
    "tune",
    "tune_lightning",
    "tune_trainer",
    "use",
]


def test_the_public_names_are_these() -> None:
    assert advisor.__all__ == PUBLIC
    assert dir(advisor) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    found = getattr(advisor, name)
    assert name == "__version__" or inspect.getdoc(found)


def test_another_name_is_an_error_that_lists_the_names_there_are() -> None:
    with pytest.raises(AttributeError, match="apply_policy"):
        advisor.tuna  # noqa: B018


def test_the_tree_in_the_errors_docstring_is_the_tree_of_the_errors() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = ["Exception"]
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+Error)\b", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        above[depth + 1 :] = [found[2]]
        drawn[found[2]] = above[depth]
    real = {
        name: error.__bases__[0].__name__
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, BaseException)
    }
    assert drawn == real
    assert sorted(real) == errors.__all__


def test_everything_raised_on_purpose_has_one_base() -> None:
    assert all(issubclass(getattr(errors, name), advisor.MomadviseError) for name in errors.__all__)


def layers() -> list[set[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in settings["contracts"] if one["type"] == "layers")
    return [{name.strip() for name in row.split("|")} for row in contract["layers"]]


def test_no_room_stands_outside_of_the_walls() -> None:
    rooms = {f"advisor.{module.name}" for module in pkgutil.iter_modules(advisor.__path__)}
    named = [name for row in layers() for name in row]
    assert sorted(named) == sorted(rooms)


def test_search_and_trial_never_meet_nor_do_policy_and_measure() -> None:
    rows = layers()
    assert {"advisor.search", "advisor.trial"} in rows
    assert {"advisor.policy", "advisor.measure"} in rows


def test_every_module_says_what_it_is_for_and_the_names_it_gives_exist() -> None:
    for module in pkgutil.walk_packages(advisor.__path__, "advisor."):
        loaded = importlib.import_module(module.name)
        assert loaded.__doc__, module.name
        assert all(hasattr(loaded, name) for name in getattr(loaded, "__all__", ())), module.name
