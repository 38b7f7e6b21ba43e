"""Find the training loops in pages and docstrings: every piece of code that makes a training step."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from advisor.policy.policy import Policy
from advisor.policy.wrapper import wrapper_source

__all__ = ["ROOT", "Loop", "documented_loops", "loops_in", "python_blocks", "texts", "without_loops"]

ROOT = Path(__file__).resolve().parents[2]

STEPS = re.compile(r"\.(step|backward|optimizer_step)\((batch|loss|micro_batch|)\)")
"""What a training step is made with."""

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^(?: {4,}|\t)[^\n]*\n|^[ \t]*\n(?= {4,}))+", flags=re.MULTILINE)
_INLINE = re.compile(r"(`+)(?!`)[^`]+?\1")


@dataclass(frozen=True)
class Loop:
    """A piece of documented code.

    Attributes:
        place: Where it stands.
        code: As it stands, but for the indentation.
    """

    place: str
    code: str

    @property
    def once(self) -> str:
        """What a training begins with: imports, the model, ``prepare``."""
        return self._part(first=True)

    @property
    def each_time(self) -> str:
        """What is run again for every batch; all of it at once where it goes through the loader itself."""
        return self._part(first=False)

    def _part(self, *, first: bool) -> str:
        nodes = [node for node in ast.parse(self.code).body if _begins(node) is first]
        return ast.unparse(ast.Module(body=nodes, type_ignores=[]))


def _begins(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    return not STEPS.search(ast.unparse(node)) and any(
        name in ast.unparse(node) for name in ("prepare(", "build_model(", "init_process_group(")
    )


def texts() -> Iterator[tuple[str, str]]:
    """Every text that may show a loop: pages, docstrings of the package, and an emitted wrapper's docstrings."""
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        yield page.relative_to(ROOT).as_posix(), page.read_text()
    for file in sorted((ROOT / "advisor").rglob("*.py")):
        yield from _docstrings(file.relative_to(ROOT).as_posix(), file.read_text())
    for count in (1, 2):
        source = wrapper_source(Policy(micro_batch=3, gpu_count=count), headline="A wrapper.", details="")
        yield from _docstrings(f"wrapper.py for {count}", source)


def _docstrings(place: str, source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield f"{place}:{getattr(node, 'name', '')}".rstrip(":"), f"{text}\n"


def documented_loops() -> list[Loop]:
    """All of them."""
    return [loop for place, text in texts() for loop in loops_in(place, text)]


def python_blocks(text: str) -> list[str]:
    """The fenced Python of a page."""
    return [code for language, code in _FENCE.findall(text) if language in ("python", "py")]


def loops_in(place: str, text: str) -> list[Loop]:
    """The loops of a text: fences of Python, and indented lines anywhere else, also in what a command printed."""
    codes = python_blocks(text)
    rest = _FENCE.sub(lambda found: "" if found[1] in ("python", "py") else found[2], text)
    codes += [found[0] for found in _INDENTED.finditer(rest)]
    codes = [textwrap.dedent(code.replace(">>> ", "").replace("... ", "")) for code in codes]
    shown = [code for code in codes if STEPS.search(_INLINE.sub("", code))]
    return [Loop(f"{place} #{number}", code) for number, code in enumerate(shown, start=1)]


def without_loops(text: str) -> str:
    """What is left of a text without the code that :func:`loops_in` finds, and without names in the running text."""
    rest = _FENCE.sub(lambda found: "" if found[1] in ("python", "py") else found[2], text)
    return _INLINE.sub("", _INDENTED.sub("", rest))
