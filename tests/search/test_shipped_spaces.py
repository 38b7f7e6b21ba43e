"""The shipped search spaces name what exists, and the exact one holds nothing that changes a bit."""

from __future__ import annotations

import pytest

from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind
from advisor.methods.catalogue import CATALOGUE
from advisor.package_data import data_folder
from advisor.search.space.space_file import load_space

NAMES = ["all", "default", "exact", "smoke"]
METHODS = {method.name: method for method in CATALOGUE}


def test_these_are_the_spaces() -> None:
    assert sorted(path.stem for path in data_folder("search_spaces").glob("*.yaml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_space_is_valid_and_named_as_its_file(name: str) -> None:
    space = load_space(name)
    assert space.name == name
    assert space.description
    assert max(space.batch_fractions) == 1
    for kind in DeviceKind:
        assert [recipe.hand_tuned for recipe in space.recipes_on(kind)].count(True) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_ceiling_admits_every_method_of_the_space_that_leaves_alone_what_is_learned(name: str) -> None:
    space = load_space(name)
    left_out = {method for method in space.methods if not space.fidelity.allows(METHODS[method].fidelity)}
    opt_in = {method for method in space.methods if METHODS[method].fidelity is Fidelity.MODEL}
    assert left_out == opt_in


def test_one_space_holds_the_whole_catalogue_at_every_setting() -> None:
    space = load_space("all")
    assert list(space.methods) == list(METHODS)
    for method in CATALOGUE:
        assert all(space.values_of(method, parameter) == parameter.choices for parameter in method.parameters)


def test_the_default_space_admits_all_that_it_names() -> None:
    space = load_space("default")
    assert all(METHODS[name].fidelity is not Fidelity.MODEL for name in space.methods)


def test_the_exact_space_holds_every_exact_method_and_no_other() -> None:
    exact = {name for name, method in METHODS.items() if method.fidelity is Fidelity.EXACT}
    assert set(load_space("exact").methods) == exact


def test_the_smoke_space_is_small() -> None:
    space = load_space("smoke")
    settings = 1
    for name in space.methods:
        for parameter in METHODS[name].parameters:
            settings *= len(space.values_of(METHODS[name], parameter))
        settings *= 2
    assert settings * len(space.batch_fractions) <= 16
