"""Write the table of folders in ``docs/architecture.md``: ``python docs/generate_architecture.py``."""

from __future__ import annotations

import ast
from pathlib import Path

PAGE = Path(__file__).with_name("architecture.md")
PACKAGE = Path(__file__).parents[1] / "advisor"
MARK = "<!-- made by docs/generate_architecture.py -->\n"


def page() -> str:
    """The page as it should be."""
    written, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    lines = ["| folder | modules | what lives there, and who calls it |", "|---|---|---|"]
    for init in sorted(PACKAGE.rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        name = init.parent.relative_to(PACKAGE.parent).as_posix()
        first = text.partition("\n\n")[0].replace("\n", " ")
        lines.append(f"| `{name}` | {len(list(init.parent.glob('*.py'))) - 1} | {first} |")
    return written + MARK + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
