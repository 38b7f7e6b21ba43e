"""A search space as its file states it: which methods, parameters and batches may be tried.

A space only narrows what the methods themselves declare. Every name in it is checked against the catalogue when it
is read, so that a misspelt method is an error and not a method that is silently never tried.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import SearchSpaceError
from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind
from advisor.hardware.mesh import MeshAxis
from advisor.methods.base import Method, Parameter
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.libraries import needed_by
from advisor.methods.setting import ParameterValue
from advisor.package_data import data_folder
from advisor.text.paths import path_of
from advisor.text.printable import quoted, shown
from advisor.text.yaml_file import read_yaml, why_invalid

__all__ = ["SCHEMA_VERSION", "Recipe", "SearchSpace", "load_space", "shipped_spaces"]

SCHEMA_VERSION = 1


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A well-known combination that is tried before the search proposes its own.

    Attributes:
        name: As people call it.
        hand_tuned: Whether it is the setting that an experienced person would pick without measuring. Parts of it
            that are refused here are left out; any other recipe is dropped when one of its parts is refused.
        optional: Methods that are left out of it where they are refused, as if it had never had them.
        device: Kind of device that it is for; any, if it is not stated.
        methods: Method -> parameter -> value. A list of values means the first that applies. A parameter that is
            not named takes the first value that the space allows.
    """

    name: str
    hand_tuned: bool = False
    methods: dict[str, dict[str, ParameterValue | list[ParameterValue]] | None]
    optional: list[str] = []
    device: DeviceKind | None = None


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search space.

    Attributes:
        schema: Version of the file format.
        name: Its name.
        description: What it is for, in one line.
        fidelity: Ceiling of fidelity, unless the user states another.
        methods: Method -> parameter -> the values that may be tried; a method that is absent is not searched, a
            parameter that is absent keeps every value that the method declares.
        every_method: Every method of the catalogue that is at least so faithful is in the space, whether ``methods``
            names it or not.
        batch_fractions: Shares of the largest feasible micro-batch that may be tried, the first one first. Where the
            largest is the only one, half of it is timed in the same trial. Not for ``faster`` on one device, which
            times a leader batch by batch, nor for ``bigger``.
        recipes: Explored first, after plain training.
        each_alone: Whether each method is then tried alone, at the first of its settings that applies. What many
            methods do together cannot be learned in a few dozen trials without knowing what each of them does.
        slow_formats: Whether recipes may compute in a number format that is slower than float32 on the device.
    """

    schema: int
    name: str
    description: str = ""
    fidelity: Fidelity
    methods: dict[str, dict[str, list[ParameterValue]] | None]
    every_method: Fidelity | None = None
    batch_fractions: tuple[float, ...] = (1.0,)
    recipes: tuple[Recipe, ...] = ()
    each_alone: bool = False
    slow_formats: bool = False

    @property
    def canonical_text(self) -> str:
        """The content without comments and layout: equal texts are equal spaces."""
        entries = msgspec.structs.asdict(self)
        del entries["every_method"]  # all that it adds is among the methods
        return msgspec.json.encode(entries).decode()

    @property
    def libraries(self) -> tuple[str, ...]:
        """The optional libraries that its methods need."""
        return needed_by(method for method in CATALOGUE if method.name in self.methods)

    def divides(self, axis: MeshAxis) -> bool:
        """Whether one of its methods divides this axis among devices."""
        return any(method.axis is axis for method in CATALOGUE if method.name in self.methods)

    def recipes_on(self, kind: DeviceKind) -> tuple[Recipe, ...]:
        """Its recipes for a kind of device."""
        return tuple(recipe for recipe in self.recipes if recipe.device in (None, kind))

    def values_of(self, method: Method, parameter: Parameter) -> tuple[ParameterValue, ...]:
        """The values of a parameter that may be tried, in the method's order."""
        narrowed = (self.methods.get(method.name) or {}).get(parameter.name)
        if narrowed is None:
            return parameter.choices
        return tuple(choice for choice in parameter.choices if _position(choice, narrowed) is not None)


def shipped_spaces() -> tuple[str, ...]:
    """Names of the spaces that come with momadvise."""
    return tuple(sorted(path.stem for path in data_folder("search_spaces").glob("*.yaml")))


def load_space(name_or_path: str, *, catalogue: Sequence[Method] = CATALOGUE) -> SearchSpace:
    """Read and check a search space.

    Args:
        name_or_path: Name of a shipped space, or path of a YAML file.
        catalogue: Every method there is.

    Raises:
        SearchSpaceError: There is no such space, or it breaks a rule.
    """
    path = _find(name_or_path)
    content = read_yaml(path, what="A search space", error=SearchSpaceError)
    return _checked(content, path, {method.name: method for method in catalogue})


def _find(name_or_path: str) -> Path:
    path = path_of(name_or_path, "--search-space", SearchSpaceError)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if not os.path.isfile(path):
            raise SearchSpaceError(f"--search-space must name a file that exists, but there is no {shown(path)}.")
        return path
    names = shipped_spaces()
    if name_or_path not in names:
        raise SearchSpaceError(
            f"--search-space must be a shipped space or the path of a .yaml file, but got {quoted(name_or_path)}. "
            + _valid("Shipped spaces", name_or_path, names)
        )
    return data_folder("search_spaces") / f"{name_or_path}.yaml"


def _checked(content: Any, file: Path, methods: Mapping[str, Method]) -> SearchSpace:
    path = shown(file)
    if not isinstance(content, dict):
        raise SearchSpaceError(f"{path}: a search space must be a mapping, but its content is {_kind(content)}.")
    version = content.get("schema")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise SearchSpaceError(
            f"{path}: 'schema' must be {SCHEMA_VERSION} for this version of momadvise, but got {quoted(version)}."
        )
    _check_keys(content, SearchSpace, path, "")
    if "every_method" in content:
        content = {"methods": {}} | content
    recipes = content.get("recipes")
    for index, recipe in enumerate(recipes if isinstance(recipes, list) else []):
        if isinstance(recipe, dict):
            _check_keys(recipe, Recipe, path, f"recipes[{index}]: ")
    try:
        space = msgspec.convert(content, SearchSpace)
    except msgspec.ValidationError as error:
        raise SearchSpaceError(f"{path}: {why_invalid(error, content)}.") from error
    space = _with_every_method(space, methods)
    _check_fractions(space, path)
    for name, narrowed in space.methods.items():
        _check_method(path, f"methods.{shown(name)}", name, narrowed or {}, methods, methods)
    searched = {name: methods[name] for name in space.methods}
    for recipe in space.recipes:
        for name, chosen in recipe.methods.items():
            where = f"recipe {quoted(recipe.name)}: methods.{shown(name)}"
            as_lists = {key: value if isinstance(value, list) else [value] for key, value in (chosen or {}).items()}
            _check_method(path, where, name, as_lists, searched, methods)
            _check_in_space(path, where, space, methods[name], as_lists)
    _check_recipe_names(space, path)
    _check_optional(space, path)
    return space


def _with_every_method(space: SearchSpace, catalogue: Mapping[str, Method]) -> SearchSpace:
    """The space with what ``every_method`` adds, in the catalogue's order."""
    if space.every_method is None:
        return space
    most = space.every_method
    faithful = {name: space.methods.get(name) for name, method in catalogue.items() if most.allows(method.fidelity)}
    return msgspec.structs.replace(space, methods=faithful | space.methods)


def _check_keys(content: Mapping[Any, Any], record: type[msgspec.Struct], path: str, where: str) -> None:
    fields = record.__struct_fields__
    for key in content:
        if key not in fields:
            raise SearchSpaceError(
                f"{path}: {where}unknown entry {quoted(key)}. {_valid('Valid entries', str(key), fields)}"
            )


def _check_fractions(space: SearchSpace, path: str) -> None:
    fractions = space.batch_fractions
    wrong = [fraction for fraction in fractions if not 0 < fraction <= 1]
    if wrong or not fractions or len(set(fractions)) != len(fractions):
        raise SearchSpaceError(
            f"{path}: 'batch_fractions' must be different numbers above 0 and up to 1, "
            f"but got {quoted(list(fractions))}."
        )


def _check_method(
    path: str,
    where: str,
    name: str,
    values: Mapping[str, Sequence[ParameterValue]],
    allowed: Mapping[str, Method],
    catalogue: Mapping[str, Method],
) -> None:
    if name not in catalogue:
        raise SearchSpaceError(
            f"{path}: {where}: unknown method {quoted(name)}. {_valid('Valid methods', name, catalogue)}"
        )
    if name not in allowed:
        raise SearchSpaceError(
            f"{path}: {where}: a recipe may only use methods of its space, but {quoted(name)} is not listed under "
            f"'methods'. {_valid('Methods of this space', name, allowed)}"
        )
    parameters = {parameter.name: parameter for parameter in catalogue[name].parameters}
    for key, chosen in values.items():
        if key not in parameters:
            raise SearchSpaceError(
                f"{path}: {where}: unknown parameter {quoted(key)}. {_valid(f'Parameters of {name}', key, parameters)}"
            )
        if not chosen:
            raise SearchSpaceError(f"{path}: {where}.{key}: at least one value must be given, but the list is empty.")
        choices = parameters[key].choices
        for value in chosen:
            if _position(value, choices) is None:
                raise SearchSpaceError(
                    f"{path}: {where}.{key}: {quoted(value)} is not a value of this parameter. "
                    + _valid("Valid values", str(value), choices)
                )


def _check_in_space(
    path: str, where: str, space: SearchSpace, method: Method, values: Mapping[str, Sequence[ParameterValue]]
) -> None:
    for parameter in method.parameters:
        in_space = space.values_of(method, parameter)
        for value in values.get(parameter.name, ()):
            if _position(value, in_space) is None:
                raise SearchSpaceError(
                    f"{path}: {where}.{parameter.name}: a recipe may only use values of its space, "
                    f"but got {quoted(value)}. " + _valid("Values of this space", str(value), in_space)
                )


def _check_recipe_names(space: SearchSpace, path: str) -> None:
    for kind in DeviceKind:
        recipes = space.recipes_on(kind)
        names = [recipe.name for recipe in recipes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SearchSpaceError(f"{path}: recipes must have different names, but {quoted(twice[0])} is there twice.")
        hand_tuned = [recipe.name for recipe in recipes if recipe.hand_tuned]
        if len(hand_tuned) > 1:
            raise SearchSpaceError(
                f"{path}: at most one recipe may be 'hand_tuned', but these are: {', '.join(map(shown, hand_tuned))}."
            )


def _check_optional(space: SearchSpace, path: str) -> None:
    for recipe in space.recipes:
        where = f"{path}: recipe {quoted(recipe.name)}: 'optional'"
        for name in recipe.optional:
            if name not in recipe.methods:
                raise SearchSpaceError(
                    f"{where}: {quoted(name)} is no method of the recipe. {_valid('Its methods', name, recipe.methods)}"
                )
        if recipe.methods and set(recipe.optional) == set(recipe.methods):
            raise SearchSpaceError(
                f"{where} must leave a method that the recipe cannot be without, but all of them are optional."
            )


def _position(value: ParameterValue, choices: Sequence[ParameterValue]) -> int | None:
    """Where a value is among choices; ``True`` is not 1 here, as it would be for ``in``."""
    same = (
        i for i, choice in enumerate(choices) if choice == value and isinstance(choice, bool) == isinstance(value, bool)
    )
    return next(same, None)


def _valid(title: str, got: str, names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    near = difflib.get_close_matches(got, texts, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return f"{meant}{title}: {', '.join(texts) or 'none'}."


def _kind(content: object) -> str:
    return "empty" if content is None else f"a {type(content).__name__}"
