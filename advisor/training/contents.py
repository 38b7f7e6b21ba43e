"""State that modules keep in the user's own containers and objects: counters in a dictionary, a helper's generator.

None of it is in a module's state dictionary, and a forward pass may change all of it.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from advisor.workload.reads import is_users

__all__ = ["alike", "children_of", "contents", "copied", "enclosed", "is_container", "kept_in", "numbers_in", "refill"]

_COLLECTIONS = (list, dict, set, collections.deque)
_NO_HELPERS = (torch.nn.Module, torch.Tensor, type, types.ModuleType, enum.Enum, BaseException)
_DEPTH = 4
_MOST = 256
"""Containers searched per module: a module that holds a whole framework is not traversed."""

_MOST_BYTES = 2**20
"""Largest array that is copied: a larger one is a data set."""

_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


def kept_in(owner: Any) -> list[tuple[str, Any]]:
    """Every user-defined object and collection that a module or function holds, by its path.

    At any depth, and in closures of the user's functions: a counter in a closure is state, too.
    """
    found: list[tuple[str, Any]] = []
    seen = {id(owner)}
    level = list(_cells(owner))
    if isinstance(owner, torch.nn.Module):
        level += [(name, value) for name, value in vars(owner).items() if name not in _OF_EVERY_MODULE]
        for kind in type(owner).__mro__:
            level += [place for one in vars(kind).values() for place in _cells(one)]
    for _ in range(_DEPTH):
        deeper: list[tuple[str, Any]] = []
        for name, value in level:
            if len(found) >= _MOST:
                return found
            if id(value) in seen or not (is_container(value) or isinstance(value, tuple)):
                continue
            seen.add(id(value))
            if not isinstance(value, tuple):
                found.append((name, value))
            deeper += [(f"{name}.{key}", child) for key, child in children_of(value)]
        deeper += [place for _, value in level for place in _cells(value)]
        level = deeper
    return found


def _cells(function: Any) -> Iterator[tuple[str, Any]]:
    """The closure of a user's function: collections themselves, numbers by their cell."""
    for name, cell, value in _enclosed(function):
        yield f"{function.__name__}.{name}", cell if _is_number(value) else value


def _enclosed(function: Any) -> Iterator[tuple[str, types.CellType, Any]]:
    """The closure variables of a user's function, with their cells and values; empty cells are left out."""
    if isinstance(function, types.FunctionType) and is_users(function.__code__.co_filename):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                found = name, cell, cell.cell_contents
                yield found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_container(value: Any) -> bool:
    """Whether it is a collection, a small array, or an object whose class is the user's."""
    if isinstance(value, (*_COLLECTIONS, types.CellType)):
        return True
    if _is_array(value):
        return value.dtype.kind in "biufc" and value.nbytes <= _MOST_BYTES
    if isinstance(value, _NO_HELPERS) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    module = type(value).__module__
    if module not in sys.modules:  # a file that was run or loaded by its path
        return True
    file = getattr(sys.modules[module], "__file__", None)
    return isinstance(file, str) and is_users(file)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def children_of(container: Any) -> Iterator[tuple[str, Any]]:
    """Its contents, by key, index or attribute."""
    if isinstance(container, dict):
        yield from ((str(key), value) for key, value in list(container.items()))
    elif isinstance(container, list | tuple | collections.deque):
        yield from ((str(index), value) for index, value in enumerate(list(container)))
    elif isinstance(container, types.CellType):
        yield "value", container.cell_contents
    elif not isinstance(container, set) and not _is_array(container):
        yield from list(vars(container).items())


def enclosed(value: Any) -> Iterator[Any]:
    """The closure variables of a user's function: numbers by their cell."""
    return (held for _, held in _cells(value))


def numbers_in(owner: Any) -> Iterator[tuple[str, Any]]:
    """Numbers, arrays, and tensors without a gradient that a module or function keeps, by name."""
    for name, container in kept_in(owner):
        if _is_array(container):
            yield name, torch.tensor(container)
            continue
        for key, value in children_of(container):
            if isinstance(value, torch.Tensor):
                counts = not value.requires_grad and value.layout == torch.strided
            else:
                counts = _is_number(value)
            if counts:
                yield f"{name}.{key}", value


def contents(container: Any) -> Any:
    """A shallow copy of its contents, to restore them from."""
    if isinstance(container, dict):
        return dict(container)
    if isinstance(container, list | collections.deque):
        return list(container)
    if isinstance(container, set):
        return set(container)
    if isinstance(container, types.CellType):
        return [container.cell_contents]
    return container.copy() if _is_array(container) else dict(vars(container))


def copied(held: Any) -> Any:
    """The same contents, with copies of tensors and arrays that may be written to."""
    if isinstance(held, dict):
        return {key: _copy(value) for key, value in held.items()}
    return [_copy(value) for value in held] if isinstance(held, list) else _copy(held)


def refill(container: Any, held: Any) -> None:
    """Restore a container to what :func:`contents` returned."""
    if isinstance(container, list) or _is_array(container):
        container[:] = held
        return
    if isinstance(container, types.CellType):
        (container.cell_contents,) = held
        return
    own: Any = container if isinstance(container, _COLLECTIONS) else vars(container)
    own.clear()
    (own.extend if isinstance(own, collections.deque) else own.update)(held)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.requires_grad else value.detach().clone()
    return value.copy() if _is_array(value) else value


def alike(held: Any, copy: Any) -> bool:
    """Whether contents are unchanged since they were copied."""
    if _is_array(held) or type(held) is not type(copy) or len(held) != len(copy):
        return _same(held, copy)
    if isinstance(held, dict):
        return held.keys() == copy.keys() and all(_same(value, copy[key]) for key, value in held.items())
    if isinstance(held, list):
        return all(_same(value, other) for value, other in zip(held, copy, strict=True))
    return bool(held == copy)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
    if _is_array(one):
        return _is_array(other) and one.shape == other.shape and bool((one == other).all())
    return isinstance(one, int | float | str) and type(one) is type(other) and one == other
