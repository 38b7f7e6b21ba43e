"""``python -m tests.house`` prints folders, walls and cycles, and the longest files, functions and classes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from tests.house.reading import modules

_SHOWN = 12


def main() -> None:
    """Print them."""
    known = modules()
    print(f"{sum(one.lines for one in known.values()):,} lines in {len(known)} files")
    print("\nmodules in each folder")
    folders = Counter(str(one.path.parent) for one in known.values() if one.path.stem != "__init__")
    for folder, count in sorted(folders.items()):
        print(f"{count:5}  {folder}")
    print("\nwalls and cycles (lint-imports)")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    print("\n".join(f"       {line}" for line in told.splitlines() if " KEPT" in line or " BROKEN" in line))
    _print("longest files", [(one.lines, str(one.path)) for one in known.values()])
    for title, kind in (("longest functions", "functions"), ("classes by public methods", "classes")):
        figures = [(figure, f"{one.path}: {name}") for one in known.values() for name, figure in getattr(one, kind)]
        _print(title, figures)


def _print(title: str, figures: list[tuple[int, str]]) -> None:
    print(f"\n{title}")
    for figure, name in sorted(figures, reverse=True)[:_SHOWN]:
        print(f"{figure:5}  {name}")


if __name__ == "__main__":
    main()
