"""What a stranger may rely on who looks for something: how large rooms are, and which files load torch."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from tests.house.reading import Module, modules, torch_loaders

ROOT = Path(__file__).parents[2]
DOCSTRINGS: dict[Path, str] = runpy.run_path(str(ROOT / "docs" / "generate_architecture.py"))["docstrings"]()
KNOWN = modules()
TORCH = torch_loaders(KNOWN)
MOST_MODULES = 26
LONGEST_FILE = 350
LONGEST_FUNCTION = 60

LOADS_TORCH = (
    "advisor/integrations/",
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

TOO_LONG: dict[str, int] = {}
"""Files that are longer than they should be, and how long each may be until it is cut."""

LONG_FUNCTIONS: dict[str, int] = {}
"""Functions that are longer than they should be, likewise."""

SAME_NAME: dict[str, tuple[tuple[str, ...], str]] = {
    "answer": (("advisor/decide", "advisor/report"), "the record, and how it is shown"),
    "growth": (("advisor/decide", "advisor/report"), "the record, and how it is shown"),
    "guard": (("advisor/decide", "advisor/session/trials"), "how a comparison is judged, and when it is made"),
    "probe": (("advisor/session/trials", "advisor/trial/worker"), "asking for the trial, and running it"),
}
"""Names of files in more than one room: which rooms, and why. One idea seen from two sides may keep its name."""


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


@pytest.mark.parametrize("folder", DOCSTRINGS, ids=lambda folder: folder.name)
def test_each_folder_says_in_one_sentence_what_lives_in_it_and_who_calls_it(folder: Path) -> None:
    found = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    first = " ".join(found.partition("\n\n")[0].split())
    assert re.fullmatch(r"[^.!?]+(?:\.\w[^.!?]*)*\.", first), "one sentence"
    assert found == DOCSTRINGS[folder], "python docs/generate_architecture.py"


def test_no_name_means_two_things() -> None:
    folders: dict[str, set[str]] = {}
    for one in KNOWN.values():
        if one.path.stem != "__init__":
            folders.setdefault(one.path.stem.removeprefix("_"), set()).add(str(one.path.parent))
    shared = {name: found for name, found in folders.items() if len(found) > 1}
    assert shared == {name: set(known) for name, (known, _) in SAME_NAME.items()}


def test_each_private_function_is_used() -> None:
    """One that is not is a leftover, or overrides what is no longer called."""
    words = Counter(re.findall(r"\w+", "\n".join(one.text for one in KNOWN.values())))
    functions = {
        (str(one.path), node.name)
        for one in KNOWN.values()
        for node in ast.walk(one.tree)
        if isinstance(node, ast.FunctionDef) and re.match("_[^_]", node.name)
    }
    assert [place for place in sorted(functions) if words[place[1]] == 1] == []


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
