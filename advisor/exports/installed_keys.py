"""Which keys a trainer has, by the source of its library where that is installed; nothing of it is imported or run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from advisor.exports.patching import strange_keys
from advisor.exports.reading import value_at
from advisor.exports.rules import Schema, Target

__all__ = ["Strange", "absent_keys", "installed_keys", "other_keys"]


class Strange(NamedTuple):
    """The keys of a configuration that are in no table of ours.

    Attributes:
        unknown: Those that the installed trainer has not either.
        unchecked: Those that could not be looked up, because the trainer is not installed.
    """

    unknown: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


def other_keys(document: Mapping[str, Any], target: Target) -> Strange:
    """Look up the keys that no table has, in the sections of which the trainer has a list."""
    unknown, unchecked = [], []
    strange = list(strange_keys(document, target))
    for section in (*target.sections, *target.nested):
        above = f"{section}." if section else ""
        place = value_at(document, section) if section else document
        inside = {f"{above}{name}": str(name) for name in place} if isinstance(place, Mapping) else {}
        keys = [key for key in strange if key in inside]
        known = installed_keys(target, section) if keys else frozenset()
        if known:
            unknown += [key for key in keys if inside[key] not in known]
        else:
            unchecked += keys
    return Strange(unknown=tuple(unknown), unchecked=tuple(unchecked))


def absent_keys(written: Iterable[str], target: Target) -> dict[str, str]:
    """Keys that an export writes and the installed trainer, of another version, does not have.

    Returns:
        Dotted key -> its former name, empty if it has none.
    """
    former = {new: old for old, new in target.older.items()}
    found: dict[str, str] = {}
    for section in (*target.sections, *target.nested):
        above = f"{section}." if section else ""
        known = installed_keys(target, section)
        for key in written:
            name = key.removeprefix(above).partition(".")[0]
            if known and key.startswith(above) and name not in known:
                found[f"{above}{name}"] = former.get(f"{above}{name}", "")
    return found


def installed_keys(target: Target, section: str = "") -> frozenset[str]:
    """Names of the keys that the installed trainer has in a section.

    Empty if the trainer is not installed, or has no list where it had.
    """
    found = [frozenset(_names(schema)) for schema in target.nested.get(section, target.schemas)]
    return frozenset[str]().union(*found) if found and found[0] else frozenset()


def _names(schema: Schema) -> Iterator[str]:
    for name in _listed(schema):
        yield from {name, name.removeprefix(schema.prefix), f"{schema.prefix}{name}"}


def _listed(schema: Schema) -> Iterator[str]:
    for path in _files(schema):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if schema.classes:
                if isinstance(node, ast.ClassDef) and node.name in schema.classes:
                    yield from _fields(node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                word = node.value.removeprefix("--")
                if word.isidentifier():
                    yield word


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Fields of a class, and what its ``__init__`` takes."""
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id
        elif isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            yield from (one.arg for one in (*inner.args.args[1:], *inner.args.kwonlyargs))


def _files(schema: Schema) -> Iterator[Path]:
    """The files of a package, which is found without importing it."""
    try:
        spec = importlib.util.find_spec(schema.package)
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for pattern in schema.files:
            yield from sorted(Path(folder).glob(pattern))
