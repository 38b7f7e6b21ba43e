"""A syntax tree without the type annotations that nothing reads when the code runs."""

from __future__ import annotations

import ast
from collections.abc import Iterable

__all__ = ["without_annotations"]

_READERS = frozenset({
    "__annotations__", "get_annotations", "get_type_hints", "signature", "getfullargspec",
    "script", "script_method", "ScriptModule",
    "beartype", "beartype_this_package", "beartype_package", "beartype_packages", "install_import_hook",
})  # fmt: skip
"""Whoever refers to one of these, anywhere in the workload, may read every annotation."""

_IGNORANT = frozenset({
    "abstractmethod", "cache", "cached_property", "classmethod", "inference_mode", "lru_cache", "no_grad", "override",
    "property", "staticmethod",
})  # fmt: skip
"""Decorators that do not read the annotations of what they decorate."""


def without_annotations(modules: Iterable[ast.Module]) -> None:
    """Remove annotations from functions and variables, in place, unless something may read them.

    Those of a class body stay, which dataclasses and their like read, and so do all those below a decorator that we do
    not know.
    """
    trees = list(modules)
    names = {
        getattr(part, "id", None) or getattr(part, "attr", None) or getattr(part, "name", None)
        for tree in trees
        for part in ast.walk(tree)
        if isinstance(part, ast.Name | ast.Attribute | ast.alias)
    }
    if any(isinstance(name, str) and name.rpartition(".")[2] in _READERS for name in names):
        return
    for tree in trees:
        _Removal().visit(tree)


class _Removal(ast.NodeTransformer):
    def __init__(self) -> None:
        self._in_class = False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node if node.decorator_list else self._below(node, in_class=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if self._in_class:
            return node
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if not all(_name_of(one) in _IGNORANT for one in node.decorator_list):
            return node
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        for starred in (arguments.vararg, arguments.kwarg):
            if starred is not None:
                starred.annotation = None
        node.returns = None
        return self._below(node, in_class=False)

    def _below(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, *, in_class: bool) -> ast.AST:
        outer, self._in_class = self._in_class, in_class
        self.generic_visit(node)
        self._in_class = outer
        node.body = node.body or [ast.Pass()]
        return node


def _name_of(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
