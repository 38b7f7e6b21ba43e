"""benchmarks/README.md names exactly the commands that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
PAGE = (BENCHMARKS / "README.md").read_text(encoding="utf-8")


def test_every_command_on_the_page_exists() -> None:
    named = set(re.findall(r"python -m (benchmarks[\w.]*)", PAGE))
    assert named
    for name in named:
        assert importlib.util.find_spec(name) is not None, name


def test_every_command_outside_of_the_papers_is_on_the_page() -> None:
    for path in BENCHMARKS.rglob("*.py"):
        name = ".".join(("benchmarks", *path.relative_to(BENCHMARKS).with_suffix("").parts))
        if "papers" not in path.parts and '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            assert f"python -m {name.removesuffix('.__main__')}" in PAGE, name
