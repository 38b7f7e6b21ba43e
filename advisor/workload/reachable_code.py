"""A digest of the code that a workload runs: docs/decisions/0043.

Structure cannot show a changed forward pass, so that the text of the code counts, as a syntax tree: without comments,
docstrings, layout and names of files, without the functions and classes that nothing refers to, and without the part
that runs only when the file is the main program. Numbers of the optimizer, such as a learning rate, do not count: those
that decide what it keeps in memory show in the optimizer that is built.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from advisor.workload.fingerprint import digest_of, imported_files, local_modules, words_of
from advisor.workload.outline import parse_file

__all__ = ["local_code"]

_COMPUTED_NAMES = frozenset({"eval", "exec", "globals", "locals", "vars", "dir", "import_module", "__import__"})
"""Whoever calls one of these may use what nothing refers to by its name."""

_NUMBER_ALONE = frozenset({"MAX_GRAD_NORM"})
"""Constants of which only matters whether they are stated."""


class _Statement(NamedTuple):
    """A statement at the top level of a file.

    Attributes:
        name: What it defines, if running it does nothing but define that.
        numbers_of: What it assigns to, if it is an assignment.
        uses: Names that occur in it.
        is_local_import: Whether it imports from the workload's own files.
    """

    node: ast.stmt
    file: int
    name: str
    numbers_of: frozenset[str]
    uses: frozenset[str]
    is_local_import: bool


def local_code(
    path: Path, root: Path, roots: Collection[str], optimizer_roots: Collection[str] = ("build_optimizer",)
) -> tuple[str, tuple[str, ...]]:
    """A digest of the code that is reached from some functions, and the files that it is in.

    Args:
        path: The file with the functions.
        root: The folder for its absolute imports: its own, or the one that holds its package.
        roots: Names of the functions.
        optimizer_roots: Those of them that only make the optimizer.

    Raises:
        WorkloadError: The file, or one that it imports, is not valid Python.
    """
    files = [path, *sorted(local_modules(path, root))]
    return _digest(files, root, roots, optimizer_roots), tuple(map(str, files))


def _digest(files: Sequence[Path], root: Path, roots: Collection[str], optimizer_roots: Collection[str]) -> str:
    try:
        bodies = [parse_file(file).body for file in files]
        classes = {node.name for body in bodies for node in body if isinstance(node, ast.ClassDef)}
        statements = [
            _statement(node, number, classes, any(imported_files(node, files[number], root)))
            for number, body in enumerate(bodies)
            for node in body
            if not _does_nothing(node)
        ]
        training = _reached(statements, set(roots) - set(optimizer_roots))
        whole = _reached(statements, set(roots))
        of_training = {name for one in training for name in one.uses}
        of_optimizer = {name for one in whole for name in one.uses} - of_training
        reached = {id(one.node) for one in training}

        def digest(one: _Statement) -> str:
            of_optimizer_alone = bool(one.numbers_of) and one.numbers_of <= of_optimizer | _NUMBER_ALONE
            numbers = id(one.node) in reached and not of_optimizer_alone
            return digest_of("\n".join(_words(one, numbers=numbers)))

        parts = [_of_file([one for one in whole if one.file == number], digest) for number in range(len(files))]
    except (RecursionError, MemoryError, ValueError):  # the last for a number with thousands of digits
        return digest_of(*(file.read_bytes() for file in files))
    first, *others = parts
    return digest_of(first, *sorted(others))


def _of_file(statements: Iterable[_Statement], digest: Callable[[_Statement], str]) -> str:
    """Imports and definitions may stand in any order; what runs has one."""
    free: list[str] = []
    ordered: list[str] = []
    for one in statements:
        of_import = isinstance(one.node, ast.Import | ast.ImportFrom)
        (free if one.name or of_import else ordered).append(digest(one))
    return digest_of(*sorted(free), "", *ordered)


def _statement(node: ast.stmt, file: int, classes: set[str], is_local_import: bool) -> _Statement:
    return _Statement(
        node=node,
        file=file,
        name=_only_defined(node, classes),
        numbers_of=_assigned(node),
        uses=frozenset(_names_in(node)),
        is_local_import=is_local_import,
    )


def _reached(statements: Sequence[_Statement], roots: set[str]) -> list[_Statement]:
    """What runs when the files are imported, and every definition that something reached refers to by its name."""
    names, reached = set(roots), set[int]()
    while True:
        new = [
            number
            for number, one in enumerate(statements)
            if number not in reached and (not one.name or one.name in names)
        ]
        if not new:
            break
        reached.update(new)
        for number in new:
            names |= statements[number].uses
    if names & _COMPUTED_NAMES or "" in names:
        return list(statements)
    return [one for number, one in enumerate(statements) if number in reached]


def _does_nothing(node: ast.stmt) -> bool:
    """A bare text, or what runs only in the main program, which no worker is."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Compare):
        return False
    return ast.unparse(node.test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _only_defined(node: ast.stmt, classes: set[str]) -> str:
    """The name of a function or class whose definition has no other effect that we know of.

    A decorator may register it, and so may a base class of the workload's own.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
        return node.name
    if isinstance(node, ast.ClassDef) and not node.decorator_list and not node.keywords:
        bases = {name for base in node.bases for name in _names_in(base)}
        return "" if bases & classes else node.name
    return ""


def _assigned(node: ast.stmt) -> frozenset[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    if targets and all(isinstance(one, ast.Name) for one in targets):
        return frozenset(one.id for one in targets if isinstance(one, ast.Name))
    return frozenset()


def _names_in(node: ast.AST) -> Iterator[str]:
    """Every name that occurs, in a text too; the empty one for an attribute whose name is computed."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.alias):
            yield from (part.name.rpartition(".")[2], part.asname or "__name__")
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            yield part.value
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "getattr":
            name = part.args[1] if len(part.args) > 1 else None
            if not isinstance(name, ast.Constant):
                yield ""


def _words(one: _Statement, *, numbers: bool) -> Iterator[str]:
    node = one.node
    if one.is_local_import and isinstance(node, ast.ImportFrom):  # what it imports counts, not where it is
        node = ast.ImportFrom(module=None, names=node.names, level=0)
    return words_of(node, numbers=numbers)
