"""What a stranger may rely on who looks for something: how large rooms are, and which files load torch."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.house.reading import Module, modules, torch_loaders

KNOWN = modules()
TORCH = torch_loaders(KNOWN)
MOST_MODULES = 26
LONGEST_FILE = 350
LONGEST_FUNCTION = 60

LOADS_TORCH = (
    "advisor/training/",
    "advisor/measure/batches/",
    "advisor/measure/memory/",
    "advisor/measure/speed/",
    "advisor/measure/state/",
    "advisor/predict/cuda/",
    "advisor/predict/trace/",
    "advisor/predict/workspace/",
    "advisor/trial/ranks/",
    "advisor/trial/worker/",
)
"""Rooms of the child process. Elsewhere a file that loads torch says so by its name: ``_name.py``."""

TOO_LONG = {
    "advisor/cli.py": 496,
    "advisor/session/loop.py": 375,
    "advisor/session/trials/trials.py": 469,
    "advisor/session/tuning.py": 409,
    "advisor/training/training.py": 478,
}
"""Files that are longer than they should be, and how long each may be until it is cut."""

LONG_FUNCTIONS = {
    "advisor/api.py: tune": 86,
    "advisor/methods/recompute/optimal_checkpoint.py: apply": 61,
    "advisor/search/space/build_space.py: resolve": 63,
    "advisor/session/answer/conclude.py: confirm": 105,
    "advisor/session/tune.py: run_session": 96,
}
"""Functions that are longer than they should be, likewise."""


def in_the_child(module: Module) -> bool:
    return str(module.path).startswith(LOADS_TORCH)


@pytest.mark.parametrize("name", [name for name, one in KNOWN.items() if not in_the_child(one)])
def test_what_loads_torch_says_so_in_its_name(name: str) -> None:
    private = KNOWN[name].path.name.startswith("_") and not KNOWN[name].path.name.startswith("__")
    assert (name in TORCH) == private


def test_the_training_runtime_knows_no_method() -> None:
    for name, module in KNOWN.items():
        if name.startswith("advisor.training"):
            assert "advisor.methods" not in module.text, name


def test_no_folder_is_too_large_to_look_through() -> None:
    counts = Counter(one.path.parent for one in KNOWN.values() if one.path.stem != "__init__")
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_each_folder_says_what_lives_in_it() -> None:
    for module in KNOWN.values():
        if module.path.stem == "__init__":
            text = ast.get_docstring(module.tree)
            assert text, f"{module.path} has no docstring"


def test_no_file_is_long() -> None:
    long = {str(one.path): one.lines for one in KNOWN.values() if one.lines > LONGEST_FILE}
    assert {path: lines for path, lines in long.items() if lines > TOO_LONG.get(path, 0)} == {}
    assert set(TOO_LONG) <= set(long), "a file that was cut leaves the list"


def test_no_function_is_long() -> None:
    found = {
        f"{one.path}: {name}": lines
        for one in KNOWN.values()
        for name, lines in one.functions
        if lines > LONGEST_FUNCTION
    }
    assert {name: lines for name, lines in found.items() if lines > LONG_FUNCTIONS.get(name, 0)} == {}
    assert set(LONG_FUNCTIONS) <= set(found), "a function that was cut leaves the list"
