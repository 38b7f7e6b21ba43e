"""A digest of the code that a workload runs: docs/decisions/0043.

Structure cannot show a changed forward pass, so that the text of the code counts, as a syntax tree: without comments,
docstrings, annotations, layout and names of files, without the functions, classes, constants and imports that nothing
refers to, and without the part that runs only when the file is the main program. Numbers of the optimizer, such as a
learning rate, do not count: those that decide what it keeps in memory show in the optimizer that is built.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from advisor.workload.code.fingerprint import digest_of, imported_files, local_modules, words_of
from advisor.workload.code.without_annotations import without_annotations
from advisor.workload.outline import parse_file
from advisor.workload.workload import CONSTANTS

__all__ = ["local_code"]

_COMPUTED_NAMES = frozenset({
    "eval", "exec", "globals", "locals", "vars", "dir", "getmembers", "__dict__", "import_module", "__import__"
})  # fmt: skip
"""Whoever calls one of these may use what nothing refers to by its name."""

_NUMBER_ALONE = frozenset({"MAX_GRAD_NORM"})
"""Constants of which only matters whether they are stated."""


_VALUES = (
    ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp,
    ast.keyword, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip
"""The parts of an expression that does nothing besides having a value."""

_HARMLESS_CALLS = frozenset({
    "ParamSpec", "Path", "PurePath", "TypeVar", "bool", "device", "dict", "float", "frozenset", "getLogger", "int",
    "list", "namedtuple", "range", "set", "str", "tuple",
})  # fmt: skip
"""Names of functions and classes that do nothing besides returning a value, whatever module they are called from."""

_NEVER = ("__name__ == '__main__'", "'__main__' == __name__", "TYPE_CHECKING", "typing.TYPE_CHECKING")
"""Conditions that do not hold in a worker."""

_IMPORTED_ANYWAY = frozenset({"torch", "numpy"})
"""Packages that every workload imports, itself or through torch; so importing one does nothing more."""


class _Statement(NamedTuple):
    """A statement at the top level of a file; of an import of several names, one of them.

    Attributes:
        name: What it defines, if running it does nothing but define that.
        numbers_of: What it assigns to, if it is an assignment.
        uses: Names that occur in it.
        package: The package that it imports from, if it is an import; empty for a relative one.
        is_local_import: Whether it imports from the workload's own files.
    """

    node: ast.stmt
    file: int
    name: str
    numbers_of: frozenset[str]
    uses: frozenset[str]
    package: str | None
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
        modules = [parse_file(file) for file in files]
        without_annotations(modules)
        classes = {node.name for module in modules for node in module.body if isinstance(node, ast.ClassDef)}
        statements = [
            _statement(node, number, classes, bound, any(imported_files(node, files[number], root)))
            for number, module in enumerate(modules)
            for bound in [_bound_once(module)]
            for statement in module.body
            if not _does_nothing(statement)
            for node in _single(statement)
        ]
        training = _reached(statements, {*roots, *CONSTANTS} - set(optimizer_roots))
        whole = _needed(_reached(statements, {*roots, *CONSTANTS}))
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


def _statement(
    node: ast.stmt, file: int, classes: set[str], bound_once: Collection[str], is_local_import: bool
) -> _Statement:
    return _Statement(
        node=node,
        file=file,
        name=_only_defined(node, classes, bound_once),
        numbers_of=_assigned(node),
        uses=frozenset(_names_in(node)),
        package=_package_of(node),
        is_local_import=is_local_import,
    )


def _single(node: ast.stmt) -> Iterator[ast.stmt]:
    """An import of several names as one import each; any other statement as it is."""
    if isinstance(node, ast.Import):
        yield from (ast.Import(names=[name]) for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (ast.ImportFrom(module=node.module, names=[name], level=node.level) for name in node.names)
    else:
        yield node


def _package_of(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Import):
        return node.names[0].name.partition(".")[0]
    if isinstance(node, ast.ImportFrom):
        return "" if node.level else (node.module or "").partition(".")[0]
    return None


def _bound_once(module: ast.Module) -> frozenset[str]:
    """Names that one assignment in the whole file binds, and nothing else."""
    bound = Counter[str]()
    for part in ast.walk(module):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            bound[part.id] += 1
        elif isinstance(part, ast.alias):
            bound[part.asname or part.name.partition(".")[0]] += 1
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound[part.name] += 1
        elif isinstance(part, ast.Global):
            bound.update(part.names)
    return frozenset(name for name, times in bound.items() if times == 1)


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


def _needed(statements: Sequence[_Statement]) -> list[_Statement]:
    """Without imports of names that nothing uses, as far as importing their package does nothing else."""
    of_code = {name for one in statements if one.package is None for name in one.uses}
    if of_code & _COMPUTED_NAMES or "" in of_code:
        return list(statements)
    used = of_code | {name for one in statements if one.is_local_import for name in one.uses}

    def is_used(one: _Statement) -> bool:
        return one.package is None or one.is_local_import or bool(_bound_by(one.node) & (used | {"*"}))

    known = {one.package for one in statements if is_used(one)} | _IMPORTED_ANYWAY | sys.stdlib_module_names
    return [one for one in statements if is_used(one) or not one.package or one.package not in known]


def _bound_by(node: ast.stmt) -> set[str]:
    names = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
    return {name.asname or name.name.partition(".")[0] for name in names}


def _does_nothing(node: ast.stmt) -> bool:
    """A bare text, what runs only in the main program, which no worker is, or what only a type checker sees."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) in _NEVER


def _only_defined(node: ast.stmt, classes: set[str], bound_once: Collection[str]) -> str:
    """The name of a function, class or constant whose definition has no other effect that we know of.

    A decorator may register it, and so may a base class of the workload's own. Python itself calls a function such as
    ``__getattr__``.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
        return "" if node.name.startswith("__") else node.name
    if isinstance(node, ast.Assign) and all(map(_only_has_a_value, ast.walk(node.value))):
        names = _assigned(node) if len(node.targets) == 1 else frozenset[str]()
        return next((name for name in names if name in bound_once), "")
    if isinstance(node, ast.ClassDef) and not node.decorator_list and not node.keywords:
        bases = {name for base in node.bases for name in _names_in(base)}
        return "" if bases & classes else node.name
    return ""


def _only_has_a_value(part: ast.AST) -> bool:
    """Whether this part of an expression does nothing besides having a value."""
    if isinstance(part, ast.Call):
        called = part.func
        return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in _HARMLESS_CALLS
    return isinstance(part, _VALUES)


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
