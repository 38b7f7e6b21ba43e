"""Write who calls each folder into its docstring, and the table of folders into ``docs/architecture.md``.

``python docs/generate_architecture.py`` does both, from the imports.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import grimp

PAGE = Path(__file__).with_name("architecture.md")
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "advisor"
MARK = "<!-- made by docs/generate_architecture.py -->\n"
MOST_NAMED = 7
"""Above that many callers, a folder is called by most rooms."""


def page() -> str:
    """The page as it should be."""
    written, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    lines = ["| folder | modules | what lives there | called by |", "|---|---|---|---|"]
    calls = callers()
    for folder in calls:
        first, *_ = _docstring(folder).split("\n\n")
        count = len(list(folder.glob("*.py"))) - 1
        callers_words = _words(calls[folder]) or "-"
        lines.append(f"| `{_name(folder)}` | {count} | {' '.join(first.split())} | {callers_words} |")
    return written + MARK + "\n" + "\n".join(lines) + "\n"


def docstrings() -> dict[Path, str]:
    """Each folder's docstring as it should be: what is written there, and then who calls it."""
    calls = callers()
    found = {}
    for folder in calls:
        parts = [part for part in _docstring(folder).split("\n\n") if not part.startswith("Called by ")]
        if calls[folder]:
            parts.append("\n".join(textwrap.wrap(f"Called by {_words(calls[folder])}.", 117)))
        found[folder] = "\n\n".join(parts)
    return found


def callers() -> dict[Path, set[str]]:
    """Folder -> who imports from it: another room, another folder of its own room, or the folders below it."""
    folders = {init.parent: set[str]() for init in sorted(PACKAGE.rglob("__init__.py"))}
    graph = grimp.build_graph("advisor", exclude_type_checking_imports=True, cache_dir=None)
    for importer in graph.modules:
        path = _file(importer)
        for imported in graph.find_modules_directly_imported_by(importer):
            target = _file(imported).parent
            if target not in (path.parent, PACKAGE):
                folders[target].add(_caller(path, target))
    return folders


def _caller(path: Path, target: Path) -> str:
    if target in path.parents:
        return "its own folders"
    if path.parent == PACKAGE:
        return "advisor" if path.stem == "__init__" else path.stem
    room = path.relative_to(PACKAGE).parts[0]
    return _name(path.parent).removeprefix("advisor/") if PACKAGE / room in (target, *target.parents) else room


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _words(names: set[str]) -> str:
    if len(names) > MOST_NAMED:
        return "most rooms"
    *others, last = sorted(names, key=lambda name: (name == "its own folders", name)) or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""


def _name(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


def main() -> None:
    """Write them."""
    for folder, text in docstrings().items():
        init = folder / "__init__.py"
        source = init.read_text(encoding="utf-8")
        docstring = ast.parse(source).body[0]
        rest = "".join(source.splitlines(keepends=True)[docstring.end_lineno :])
        end = "\n" if "\n" in text else ""
        init.write_text(f'"""{text}{end}"""\n{rest}', encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
