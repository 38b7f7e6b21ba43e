from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import SearchSpaceError
from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.search.space.space_file import load_space, shipped_spaces

HEAD = "schema: 1\nname: mine\nfidelity: lossy\n"


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_shipped_spaces_are_there_and_valid() -> None:
    assert set(shipped_spaces()) == {"all", "default", "exact", "smoke"}
    for name in shipped_spaces():
        space = load_space(name)
        assert space.name == name
        assert space.description
        assert all(sum(recipe.hand_tuned for recipe in space.recipes_on(kind)) == 1 for kind in DeviceKind)


def test_one_space_searches_every_method() -> None:
    assert set(load_space("all").methods) == {method.name for method in CATALOGUE}


def test_the_exact_space_has_only_exact_methods() -> None:
    space = load_space("exact")
    assert space.fidelity is Fidelity.EXACT
    assert {get_method(name).fidelity for name in space.methods} == {Fidelity.EXACT}


def test_a_space_may_take_every_method_that_is_faithful_enough_and_narrow_some(tmp_path: Path) -> None:
    space = load_space(write(tmp_path, HEAD + "every_method: rounding\nmethods: {checkpoint: {every: [2]}}"))
    faithful = {method.name for method in CATALOGUE if Fidelity.ROUNDING.allows(method.fidelity)}
    assert set(space.methods) == faithful
    checkpoint, swap = get_method("checkpoint"), get_method("swap")
    assert space.values_of(checkpoint, checkpoint.parameters[0]) == (2,)
    assert space.values_of(swap, swap.parameters[0]) == swap.parameters[0].choices
    assert set(load_space(write(tmp_path, HEAD + "every_method: rounding")).methods) == faithful


def test_a_class_of_fidelity_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SearchSpaceError, match=r"every_method.*exakt"):
        load_space(write(tmp_path, HEAD + "every_method: exakt\nmethods: {}"))


def test_a_space_narrows_what_a_method_declares(tmp_path: Path) -> None:
    space = load_space(write(tmp_path, HEAD + "methods: {checkpoint: {every: [4, 2]}, precision: {}}"))
    checkpoint, precision = get_method("checkpoint"), get_method("precision")
    assert space.values_of(checkpoint, checkpoint.parameters[0]) == (2, 4)
    assert space.values_of(precision, precision.parameters[0]) == precision.parameters[0].choices


def test_a_space_names_the_optional_libraries_of_its_methods_and_no_others(tmp_path: Path) -> None:
    assert load_space(write(tmp_path, HEAD + "methods: {checkpoint: {}}")).libraries == ()
    listed = load_space(write(tmp_path, HEAD + "methods: {qlora: {}, adam_8bit: {}}")).libraries
    assert listed == ("bitsandbytes", "peft")


def test_comments_and_layout_do_not_change_the_canonical_text(tmp_path: Path) -> None:
    one = load_space(write(tmp_path, HEAD + "methods: {checkpoint: {every: [1]}}")).canonical_text
    other = load_space(write(tmp_path, "# mine\n" + HEAD + "methods:\n  checkpoint:\n    every: [1]\n")).canonical_text
    edited = load_space(write(tmp_path, HEAD + "methods: {checkpoint: {every: [2]}}")).canonical_text
    assert one == other != edited


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "methods: {checkpont: {}}",
            r"unknown method 'checkpont'. Did you mean 'checkpoint'\? Valid methods: precision,",
        ),
        ("methods: {checkpoint: {evry: [1]}}", r"unknown parameter 'evry'. Did you mean 'every'\? Parameters of check"),
        ("methods: {precision: {dtype: [bf17]}}", r"'bf17' is not a value of this.*Did you mean 'bf16'\? Valid values"),
        ("methods: {checkpoint: {every: [true]}}", r"True is not a value of this parameter. Valid values: 1,"),
        ("methods: {checkpoint: {every: []}}", r"at least one value must be given"),
        ("methods: {checkpoint: {every: 1}}", r"Expected `array`, got `int` - at `\$.methods"),
        ("methods: {}\nbatch_fraction: [1]", r"unknown entry 'batch_fraction'. Did you mean 'batch_fractions'\? Valid"),
        ("methods: {}\nbatch_fractions: [1, 0]", r"numbers above 0 and up to 1, but got \[1.0, 0.0\]"),
        ("methods: {}\nbatch_fractions: []", r"numbers above 0 and up to 1, but got \[\]"),
        ("methods: {}\nbatch_fractions: [1, 1.0]", r"must be different numbers"),
        ("methods: {}\nrecipes: [{name: a, methods: {swap: {}}}]", r"recipe 'a'.*only use methods of its space"),
        ("methods: {}\nrecipes: [{nam: a}]", r"recipes\[0\]: unknown entry 'nam'. Did you mean 'name'\?"),
        (
            "methods: {checkpoint: {every: [1]}}\nrecipes: [{name: a, methods: {checkpoint: {every: 2}}}]",
            r"recipe 'a': methods.checkpoint.every: a recipe may only use values of its space, but got 2",
        ),
        ("methods: {}\nrecipes: [{name: a, methods: {}}, {name: a, methods: {}}]", r"'a' is there twice"),
        (
            "methods: {}\nrecipes:\n- &a {name: a, hand_tuned: true, methods: {}}\n- {<<: *a, name: b}",
            r"at most one recipe may be 'hand_tuned', but these are: a, b",
        ),
        (
            "methods: {checkpoint: {}}\nrecipes: [{name: a, methods: {checkpoint: {}}, optional: [lora]}]",
            r"recipe 'a': 'optional': 'lora' is no method of the recipe",
        ),
        (
            "methods: {checkpoint: {}}\nrecipes: [{name: a, methods: {checkpoint: {}}, optional: [checkpoint]}]",
            r"must leave a method that the recipe cannot be without, but all of them are optional",
        ),
    ],
)
def test_a_mistake_names_the_rule_the_value_and_what_is_valid(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message) as raised:
        load_space(write(tmp_path, HEAD + text))
    assert "mine.yaml" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping, but its content is empty"),
        ("- 1", "must be a mapping, but its content is a list"),
        ("schema: 2", "'schema' must be 1 for this version of momadvise, but got 2"),
        ("name: x", "'schema' must be 1 for this version of momadvise, but got None"),
        ("schema: 1\nname: x\nfidelity: loss\nmethods: {}", r"Invalid value - at `\$.fidelity`, which is 'loss'"),
        ("schema: 1\nname: x\nmethods: {}", "missing required field `fidelity`"),
        ("a: [", "must be valid YAML"),
    ],
)
def test_a_file_that_is_no_space_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message):
        load_space(write(tmp_path, text))


def test_a_space_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SearchSpaceError, match=r"'exat'. Did you mean 'exact'\? Shipped spaces: all, default"):
        load_space("exat")
    with pytest.raises(SearchSpaceError, match=r"there is no .*other.yaml"):
        load_space(str(tmp_path / "other.yaml"))


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SearchSpaceError, match="must be UTF-8 text"):
        load_space(str(tmp_path / "mine.yaml"))
