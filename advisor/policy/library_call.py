"""Lines of Python that call the library with functions of the user's, as a command does with the name of a model."""

from __future__ import annotations

import contextlib
import keyword
import pprint
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from advisor.text.paths import as_seen_from_here

__all__ = ["can_be_said", "check_lines", "keywords_of", "tune_lines"]

_WIDTH = 100


def tune_lines(functions: Mapping[str, str], paths: Sequence[str], keywords: Mapping[str, object]) -> tuple[str, ...]:
    """A program that calls :func:`advisor.tune` and logs what it measures, line by line.

    Args:
        functions: Role -> where the function is, as a :class:`~advisor.workload.workload.WorkloadSource` has it.
        paths: Folders that their modules are imported from.
        keywords: What else is passed.
    """
    begin = ("logging.basicConfig(level=logging.INFO)  # says what is measured", "advisor.tune(")
    arguments = (_keyword(name, value) for name, value in keywords.items())
    return _program(functions, paths, ("logging",), begin, arguments, ")")


def check_lines(
    policy: str, functions: Mapping[str, str], paths: Sequence[str], *, remeasure: bool = False
) -> tuple[str, ...]:
    """A program that calls :func:`advisor.check` and prints what it found; ``functions`` and ``paths`` as above."""
    again = ("remeasure=True",) if remeasure else ()
    return _program(
        functions, paths, (), ("check = advisor.check(", f"    {policy!r},"), again, ")\nprint(check.words)"
    )


def can_be_said(functions: Mapping[str, str]) -> bool:
    """Whether a line of Python can name them: their names are those of Python, and where they are is plain text."""
    names = [part for where in functions.values() for part in where.rpartition(":")[2].split(".")]
    return all(one.isidentifier() for one in names) and all(where.isprintable() for where in functions.values())


def keywords_of(flags: Mapping[str, str]) -> dict[str, object]:
    """What is typed for options as what is passed for keywords."""
    return {flag.removeprefix("--").replace("-", "_"): _number(value) for flag, value in flags.items()}


def _program(
    functions: Mapping[str, str],
    paths: Sequence[str],
    standard: Sequence[str],
    begin: Sequence[str],
    arguments: Iterable[str],
    end: str,
) -> tuple[str, ...]:
    modules = {role: _module(where) for role, where in functions.items()}
    folders = _folders(functions, paths)
    importlib = ("importlib",) if any(not _can_be_written(one) for one in modules.values()) else ()
    lines = [f"import {one}" for one in sorted((*importlib, *standard, *(["sys"] if folders else [])))]
    if folders:
        lines += ["", f"sys.path[:0] = {folders!r}"]
    lines += ["", "import advisor", *(_import(one) for one in dict.fromkeys(modules.values())), "", *begin]
    passed = [f"{role}={_name(modules[role])}.{where.rpartition(':')[2]}" for role, where in functions.items()]
    for one in (*passed, *arguments):
        lines += [f"    {line}" for line in f"{one},".split("\n")]
    return (*lines, *end.split("\n"))


def _folders(functions: Mapping[str, str], paths: Sequence[str]) -> list[str]:
    """Where modules are found, as they would be typed from here."""
    files = (Path(where.rpartition(":")[0]) for where in functions.values())
    folders = dict.fromkeys((*(str(file.parent) for file in files if file.is_absolute()), *paths))
    ours = str(Path(__file__).parents[2])  # of a working copy, which is found without
    return [str(as_seen_from_here(Path(one))) for one in folders if one != ours]


def _module(where: str) -> str:
    """The name of a function's module; a program is its file, which is imported by its stem."""
    module = where.rpartition(":")[0]
    return Path(module).stem if Path(module).is_absolute() else module


def _can_be_written(module: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in module.split("."))


def _import(module: str) -> str:
    return f"import {module}" if _can_be_written(module) else f"{_name(module)} = importlib.import_module({module!r})"


def _name(module: str) -> str:
    if _can_be_written(module):
        return module
    return "module_" + "".join(one if one.isidentifier() or one.isdigit() else "_" for one in module)


def _keyword(name: str, value: object) -> str:
    literal = pprint.pformat(value, width=_WIDTH, sort_dicts=False)
    return f"{name}={literal}".replace("\n", "\n" + " " * len(f"{name}="))


def _number(text: str) -> object:
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text
