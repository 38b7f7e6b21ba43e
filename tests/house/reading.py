"""The package as its files say: modules, what they import when they are imported, and how long things are."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["PACKAGE", "Module", "modules", "torch_loaders"]

PACKAGE = Path(__file__).parents[2] / "advisor"
_LOADING_TORCH = ("bitsandbytes", "peft", "torch", "torchao", "transformers", "triton")


@dataclass(frozen=True)
class Module:
    """One file.

    Attributes:
        path: Below the repository, e.g. ``advisor/cli.py``.
        text: What it holds.
    """

    path: Path
    text: str

    @property
    def name(self) -> str:
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> frozenset[str]:
        """What is imported as soon as this is: nothing inside of functions, or for type checkers alone."""
        return frozenset(_imported(self.tree.body))

    @property
    def functions(self) -> Iterator[tuple[str, int]]:
        """Name and lines of each function and method, without its docstring."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                text = ast.get_docstring(node, clean=False)
                said = 0 if text is None else text.count("\n") + 1
                yield node.name, node.end_lineno - node.lineno + 1 - said

    @property
    def classes(self) -> Iterator[tuple[str, int]]:
        """Name and number of public methods of each class, properties included."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                public = {one.name for one in node.body if isinstance(one, ast.FunctionDef) and one.name[0] != "_"}
                yield node.name, len(public)


def modules() -> dict[str, Module]:
    """Every module of the package, by name."""
    root = PACKAGE.parent
    found = [Module(path.relative_to(root), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]
    return {one.name: one for one in found}


def torch_loaders(known: dict[str, Module]) -> frozenset[str]:
    """The modules that import torch, or a library that does, when they are imported."""
    loaders: set[str] = set()
    while True:
        more = {
            name
            for name, module in known.items()
            for imported in module.imports
            if imported.split(".")[0] in _LOADING_TORCH or imported in loaders or imported.rpartition(".")[0] in loaders
        }
        if more == loaders:
            return frozenset(loaders)
        loaders = more


def _imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "the package imports by full names"
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from _imported(node.body)
            yield from _imported(node.orelse)
        elif isinstance(node, ast.Try):
            for part in (node.body, *(one.body for one in node.handlers), node.orelse, node.finalbody):
                yield from _imported(part)
        elif isinstance(node, ast.With | ast.ClassDef):
            yield from _imported(node.body)
