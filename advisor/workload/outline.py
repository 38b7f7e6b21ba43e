"""What a Python file defines at its top level, learned by parsing it: no user code runs here."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from advisor.errors import WorkloadError
from advisor.text.printable import shown

__all__ = ["ClassOutline", "Outline", "arguments_of", "parse_file", "read_outline"]


class ClassOutline(msgspec.Struct, frozen=True, kw_only=True):
    """A class at the top level of a file.

    Attributes:
        is_module: Whether a base class is called ``...Module`` or ``...Model``, as torch's and transformers' are.
        required: Constructor arguments without a default.
        forward: Arguments of ``forward`` without a default, ``self`` left out.
    """

    name: str
    is_module: bool
    required: tuple[str, ...]
    forward: tuple[str, ...]


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The top level of a file.

    Attributes:
        names: Every name bound at the top level: defined, assigned or imported.
        assigned: Those of them that are assigned.
        star_import: Whether ``from x import *`` may bind more names.
        signatures: Of functions that are defined once, in one way: neither decorated nor assigned. What is a default
            there is code.
    """

    names: frozenset[str]
    assigned: frozenset[str]
    star_import: bool
    classes: tuple[ClassOutline, ...]
    functions: tuple[str, ...]
    signatures: Mapping[str, inspect.Signature]


def parse_file(path: Path) -> ast.Module:
    """Parse a Python file.

    Raises:
        WorkloadError: It cannot be read, or it is not valid Python; file, line and column are shown.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"the model file must be readable, but {shown(path)} is not: {error.strerror}.") from error
    try:
        return ast.parse(content, filename=str(path))
    except SyntaxError as error:
        raise WorkloadError(_syntax_message(path, error)) from error
    except (ValueError, RecursionError, MemoryError) as error:
        # The first for null bytes, before Python 3.12; the others are how its parser fails on deep brackets.
        problem = error if isinstance(error, ValueError) else "it is nested too deeply"
        raise WorkloadError(f"the model file must be valid Python, but {shown(path)} is not: {problem}.") from error


def read_outline(path: Path) -> Outline:
    """Read what a file defines at its top level, also inside ``if``, ``try``, ``with`` and loops there.

    Raises:
        WorkloadError: The file cannot be read or parsed.
    """
    names: set[str] = set()
    assigned: set[str] = set()
    classes: list[ClassOutline] = []
    functions: list[str] = []
    defined: list[ast.FunctionDef] = []
    star_import = False
    for node in _top_level(parse_file(path).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node.name)
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and _arguments_differ(node):
                defined.append(node)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            classes.append(_class_outline(node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    star_import = True
                else:
                    names.add(alias.asname or alias.name.split(".")[0])
        else:
            assigned.update(
                part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            )
    return Outline(
        names=frozenset({*names, *assigned, *functions}),
        assigned=frozenset(assigned),
        star_import=star_import,
        classes=tuple(classes),
        functions=tuple(functions),
        signatures={
            node.name: _signature(node)
            for node in defined
            if functions.count(node.name) == 1 and node.name not in names | assigned
        },
    )


def _arguments_differ(function: ast.FunctionDef) -> bool:
    """Whether no two have one name, which parsing lets pass and importing does not."""
    names = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    return len(set(names)) == len(names)


def _signature(function: ast.FunctionDef) -> inspect.Signature:
    arguments = function.args
    kinds = [
        *(inspect.Parameter.POSITIONAL_ONLY for _ in arguments.posonlyargs),
        *(inspect.Parameter.POSITIONAL_OR_KEYWORD for _ in arguments.args),
        *(inspect.Parameter.KEYWORD_ONLY for _ in arguments.kwonlyargs),
    ]
    parameters = [
        inspect.Parameter(name, kind, default=inspect.Parameter.empty if default is None else default)
        for (name, default), kind in zip(arguments_of(function), kinds, strict=True)
    ]
    if arguments.vararg:
        parameters.append(inspect.Parameter(arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    if arguments.kwarg:
        parameters.append(inspect.Parameter(arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(sorted(parameters, key=lambda one: one.kind))


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the file is imported, compound ones opened but definitions not."""
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _top_level(getattr(node, field, []))
        for branch in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            yield from _top_level(branch.body)


def _class_outline(node: ast.ClassDef) -> ClassOutline:
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return ClassOutline(
        name=node.name,
        is_module=any(base.endswith(("Module", "Model")) for base in bases),
        required=_required(methods.get("__init__")),
        forward=_required(methods.get("forward")),
    )


def arguments_of(function: ast.FunctionDef) -> list[tuple[str, ast.expr | None]]:
    """Name and default of each argument, in order."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    defaults = [*[None] * without, *arguments.defaults, *arguments.kw_defaults]
    names = [argument.arg for argument in (*positional, *arguments.kwonlyargs)]
    return list(zip(names, defaults, strict=True))


def _required(function: ast.FunctionDef | None) -> tuple[str, ...]:
    """Arguments without a default, the first (``self``) left out."""
    arguments = [] if function is None else arguments_of(function)[1:]
    return tuple(name for name, default in arguments if default is None)


def _syntax_message(path: Path, error: SyntaxError) -> str:
    message = f"the model file must be valid Python, but {shown(path)}, line {error.lineno}, is not: {error.msg}."
    if not error.text:
        return message
    line = error.text.rstrip("\n")
    number = str(error.lineno)
    caret = " " * (max(error.offset or 1, 1) - 1) + "^"
    return f"{message}\n\n  {number} | {line}\n  {' ' * len(number)} | {caret}"
