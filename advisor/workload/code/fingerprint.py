"""Digests of content and of source code, and the files that a workload consists of.

Those are its file and, recursively, every module that it imports from its own folder (or, in a package, also from the
package). Other inputs (data files, modules not found by an ``import`` statement) are seen when the workload runs:
:mod:`advisor.workload.identity`.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.workload.outline import parse_file

__all__ = ["digest_of", "imported_files", "local_modules", "source_digest", "words_of"]


def digest_of(*parts: str | bytes) -> str:
    """Hash parts in order; the lengths are hashed too, so that no two lists of parts collide by concatenation."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(f"{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def source_digest(content: bytes) -> str:
    """Hash Python source without comments, docstrings and layout; if it cannot be parsed, byte by byte."""
    try:
        return digest_of("\n".join(words_of(ast.parse(content))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return digest_of(content)


def words_of(value: object, *, numbers: bool = True) -> Iterator[str]:
    """A syntax tree as text, independent of Python's version: absent fields are left out.

    Args:
        value: The tree, or a part of it.
        numbers: Whether the values of numbers are told apart.
    """
    if isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name, field in ast.iter_fields(value):
            if field is not None and field != []:
                yield name
                yield from words_of(field, numbers=numbers)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for one in value:
            if not _is_bare_text(one):
                yield from words_of(one, numbers=numbers)
        yield "]"
    elif not numbers and isinstance(value, int | float | complex) and not isinstance(value, bool):
        yield "number"
    else:
        yield repr(value)


def _is_bare_text(statement: object) -> bool:
    """Whether it is a docstring, or a text where one could be."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def local_modules(path: Path, root: Path) -> set[Path]:
    """Every file that ``path`` imports from ``root``, directly or through another, itself left out."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        for file in imported_files(parse_file(current), current, root):
            if file != path and file not in found:
                found.add(file)
                waiting.append(file)
    return found


def imported_files(tree: ast.AST, path: Path, root: Path) -> Iterator[Path]:
    """The files that a part of the file ``path`` imports, from below ``root`` or else from beside itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _found(root, path.parent, [alias.name.split(".")])
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            imported = [parts, *([*parts, alias.name] for alias in node.names)]  # `from package import module`
            if node.level == 0:
                yield from _found(root, path.parent, imported)
                continue
            # Level 1 is the file's own folder, level 2 the one above, and so on.
            base = path.parents[min(node.level, len(path.parents)) - 1]
            yield from itertools.chain.from_iterable(_files_of(base, one) for one in imported)


def _found(root: Path, beside: Path, imported: Sequence[list[str]]) -> list[Path]:
    """The files of absolute imports: what is not below the root may be beside the file, as a script's imports are."""
    files = (list(itertools.chain.from_iterable(_files_of(base, one) for one in imported)) for base in (root, beside))
    return next((some for some in files if some), [])


def _files_of(base: Path, parts: list[str]) -> Iterator[Path]:
    """Files that importing the dotted name runs: each package's ``__init__`` on the way, and the module."""
    folder = base
    for part in parts:
        for candidate in (folder / f"{part}.py", folder / part / "__init__.py"):
            if os.path.isfile(candidate):
                yield candidate
        folder = folder / part
