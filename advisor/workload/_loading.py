"""Loads a workload in the process that trains it, the only place where user code runs."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

import torch

from advisor.errors import WorkloadError
from advisor.workload._user_functions import Workload
from advisor.workload.contract import check_arguments, missing_message
from advisor.workload.importing import importing
from advisor.workload.outline import read_outline
from advisor.workload.quick_imports import quick_imports
from advisor.workload.traceback_text import user_traceback
from advisor.workload.workload import FUNCTIONS, Stated, WorkloadKind, WorkloadSource

__all__ = ["imported_module", "load_workload"]

_T = TypeVar("_T")


def load_workload(source: WorkloadSource) -> Workload:
    """Import the user's code and validate its constants, or build the workload of a Hugging Face config.

    Raises:
        WorkloadError: The import raised (its ``traceback_text`` has the user's frames), a name is missing or of the
            wrong kind, or transformers does not know the model type.
    """
    if source.kind is WorkloadKind.HUGGING_FACE:
        with quick_imports():
            from advisor.workload._hugging_face import hugging_face_workload  # loads transformers, which takes seconds

        return _stated(hugging_face_workload(source.location, source.stated), source.stated)
    for folder in reversed(source.import_paths):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if source.kind is WorkloadKind.FUNCTIONS:
        found = {role: _find(role, reference) for role, reference in source.functions.items()}
        home = imported_module(source.functions["build_model"].rpartition(":")[0])
    else:
        home = _load_file(Path(source.location), source.import_paths)
        found = {role: getattr(home, role) for role in FUNCTIONS if getattr(home, role, None) is not None}
    missing = [role for role in ("build_model", "make_batch") if role not in found]
    if missing:
        path = Path(source.location)
        raise WorkloadError(missing_message(path, missing, read_outline(path)))
    place = source.location or source.functions["build_model"]
    for role, function in found.items():
        if not callable(function):
            raise WorkloadError(f"{role} must be a function, but in {place} it is {function!r}.")
        check_arguments(role, function, place)
    given = {name: value for name in _CONSTANTS if (value := getattr(home, name, None)) is not None}
    constants = {name.lower(): _CONSTANTS[name](value, place) for name, value in given.items()}
    workload = Workload(**{**found, "build_model": _checked(found["build_model"], place), **constants})
    return _stated(workload, source.stated)


def _stated(workload: Workload, stated: Stated) -> Workload:
    """The workload with the batch and the clipping that the user says it is trained with."""
    return dataclasses.replace(
        workload,
        batch_size=workload.batch_size if stated.batch_size is None else stated.batch_size,
        max_grad_norm=workload.max_grad_norm if stated.max_grad_norm is None else stated.max_grad_norm,
    )


def _load_file(path: Path, import_paths: tuple[str, ...]) -> ModuleType:
    """Import a file: by its dotted name inside a package, else under a private name with its folder searched first.

    Inside a package its folder is searched last: a script beside an ``__init__.py`` may import its neighbours by name.
    """
    if import_paths and path.is_relative_to(import_paths[0]):
        if (folder := str(path.parent)) not in sys.path:
            sys.path.append(folder)
        parts = path.relative_to(import_paths[0]).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = _run_import(lambda: importlib.import_module(name), str(path))
        loaded_from = getattr(module, "__file__", None)
        if loaded_from is None or Path(loaded_from).resolve() != path:
            raise WorkloadError(
                f"{path} must be importable as {name}, but that name is taken by {loaded_from or 'another module'}. "
                "Rename the package, or pass a file that is not part of one."
            )
        return module
    return _load_private(path)


class _FreshSource(importlib.machinery.SourceFileLoader):
    """Compiles the file as ``python FILE`` does, without a cache.

    Python would accept the cache of an edited file with the same length and modification second.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_private(path: Path) -> ModuleType:
    # Registered in sys.modules so that pickle, dataclasses and typing find the classes defined in it.
    name = f"momadvise_workload_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loader = _FreshSource(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        _run_import(functools.partial(loader.exec_module, module), str(path))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _run_import(run: Callable[[], _T], place: str) -> _T:
    try:
        with importing(place), quick_imports():
            return run()
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = f"{place} must import without an exception, but it raised {summary}"
        raise WorkloadError(message, user_traceback(error)) from error


def imported_module(place: str) -> ModuleType:
    """Import a module by its name, or a program by its path: a program runs under another name than ``__main__``.

    Raises:
        WorkloadError: The import raised.
    """
    if place.endswith(".py"):
        return _load_private(Path(place))
    return _run_import(lambda: importlib.import_module(place), place)


def _find(role: str, reference: str) -> Any:
    place, _, qualname = reference.rpartition(":")
    found: Any = imported_module(place)
    for part in qualname.split("."):
        if not hasattr(found, part):
            raise WorkloadError(
                f"{role} must be found as {reference}, but importing it again did not define {part!r}. "
                "Define it at the top level of the file, outside any condition on __name__."
            )
        found = getattr(found, part)
    return found


def _checked(build_model: Callable[..., Any], place: str) -> Callable[..., torch.nn.Module]:
    @functools.wraps(build_model)
    def checked_build_model(**size: Any) -> torch.nn.Module:
        model = build_model(**size)
        if not isinstance(model, torch.nn.Module):
            raise WorkloadError(
                f"build_model must return a torch.nn.Module, but the one in {place} returned "
                f"{_described(model)}. Return the model itself."
            )
        return model

    return checked_build_model


def _described(value: Any) -> str:
    if value is None:
        return "None (is there a return statement?)"
    if isinstance(value, type):
        return f"the class {value.__name__} (call it: {value.__name__}(...))"
    return f"an object of type {type(value).__name__}"


def _max_grad_norm(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise WorkloadError(f"MAX_GRAD_NORM must be a positive number, but in {place} it is {value!r}.")
    return float(value)


def _batch_size(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise WorkloadError(f"BATCH_SIZE must be a whole number of samples from 1, but in {place} it is {value!r}.")
    return value


def _blocks(value: Any, place: str) -> tuple[type[torch.nn.Module], ...]:
    blocks = tuple(value) if isinstance(value, tuple | list) else (value,)
    for block in blocks:
        if not isinstance(block, type) or not issubclass(block, torch.nn.Module):
            raise WorkloadError(
                f"BLOCKS must hold classes derived from torch.nn.Module, such as BLOCKS = (Block,), "
                f"but in {place} it has {block!r}."
            )
    return blocks


def _sizes(value: Any, place: str) -> dict[str, tuple[int | float, ...]]:
    rule = 'SIZES must map argument names to growing numbers, such as SIZES = {"layers": [12, 24, 48]}'
    if not isinstance(value, Mapping):
        raise WorkloadError(f"{rule}, but in {place} it is {value!r}.")
    sizes: dict[str, tuple[int | float, ...]] = {}
    for name, choices in value.items():
        numbers = isinstance(choices, list | tuple) and all(
            isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices
        )
        if not isinstance(name, str) or not numbers or not choices or list(choices) != sorted(set(choices)):
            raise WorkloadError(f"{rule}, but in {place} {name!r} is {choices!r}.")
        sizes[name] = tuple(choices)
    return sizes


_CONSTANTS: dict[str, Callable[[Any, str], Any]] = {
    "MAX_GRAD_NORM": _max_grad_norm,
    "BATCH_SIZE": _batch_size,
    "BLOCKS": _blocks,
    "SIZES": _sizes,
}
