"""The pages of the papers, generated from the lines and the docstrings of the papers' modules.

python -m benchmarks.papers.page
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.papers.figures import Figure, markdown, read

__all__ = ["lines_with_pages", "page", "page_of", "write_page"]

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE.parents[1] / "docs" / "results"

_SIZES = {
    "paper": "",
    "smoke": "Tiny models, to show that the command runs. Their values say nothing about the paper's models.",
}
"""The sizes in the order shown, with a note on each."""

_EXPLANATION = """\
`python -m benchmarks.papers` repeats the papers' experiments and compares the results. *paper* is the paper's value,
empty where it gives none; *ours* is the measured value; where it is missing, the last column gives the reason. Other
models, devices and versions give other values: only ratios within one table should agree. Every value is from a single
run on the device named above its table."""


def page(figures: Sequence[Figure]) -> str:
    """The page of one kind of device; empty without lines."""
    if not figures:
        return ""
    parts = ["# Results of the papers", _EXPLANATION]
    # Tables without values from a paper come last.
    compared = {one.paper for one in figures if one.theirs is not None}
    for paper in sorted({one.paper for one in figures}, key=lambda paper: (paper not in compared, paper)):
        citation, reading = _introduction(paper)
        parts += [f"## {citation}", *reading, f"`python -m benchmarks.papers.{paper}`"]
        parts += _by_size([one for one in figures if one.paper == paper])
    return "\n\n".join(parts) + "\n"


def page_of(lines: Path) -> Path:
    """The page of a file of lines."""
    return lines.with_name(lines.stem.replace("cuda", "gpu") + ".md")


def lines_with_pages(folder: Path = _RESULTS) -> list[Path]:
    """The files of lines that have, or should have, a page."""
    return sorted(folder.glob("papers-*.jsonl"))


def write_page(lines: Path) -> None:
    """Write the page next to a file of lines; none without lines."""
    if text := page(read(lines)):
        page_of(lines).write_text(text, encoding="utf-8")


def _by_size(figures: Sequence[Figure]) -> Iterator[str]:
    for size in dict.fromkeys([*_SIZES, *(one.size for one in figures)]):
        if of_size := [one for one in figures if one.size == size]:
            yield f"### Size {size}"
            if note := _SIZES.get(size):
                yield note
            yield markdown(of_size, level=4)


def _introduction(paper: str) -> tuple[str, list[str]]:
    """The citation and the introduction: the first line of the module's docstring, and its prose.

    The module is not imported: its name comes from a file.
    """
    path = _HERE / f"{paper}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else None
    if docstring is None:
        return paper, []
    first, *others = docstring.split("\n\n")
    citation, what = _cited(" ".join(first.split()))
    prose = [part for part in others if not part.startswith((" ", "python -m"))]
    return citation, [one for one in (what, *prose) if one]


def _cited(line: str) -> tuple[str, str]:
    """Split ``Author year, "Title": description.`` into citation and description; a title may contain colons."""
    found = re.match(r'([^":]*(?:"[^"]*"[^":]*)*):\s+(.*)', line)
    return (found[1], found[2][:1].upper() + found[2][1:]) if found else (line.rstrip("."), "")


if __name__ == "__main__":
    for path in lines_with_pages():
        write_page(path)
