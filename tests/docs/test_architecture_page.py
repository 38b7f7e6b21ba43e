"""The architecture page shows the rooms that there are, in the order in which they may import each other."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def layers() -> list[set[str]]:
    """The rooms of the import contract, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layered,) = [one for one in contracts if one["type"] == "layers"]
    return [{name.strip().removeprefix("advisor.") for name in layer.split("|")} for layer in layered["layers"]]


def test_the_picture_names_every_room_from_top_to_bottom() -> None:
    picture = PAGE.split("```")[1]
    places = [
        max(match.start() for name in layer for match in [re.search(rf"(?<![\w.]){name}(?![\w.])", picture)] if match)
        for layer in layers()
    ]
    assert all(re.search(rf"(?<![\w.]){name}(?![\w.])", picture) for layer in layers() for name in layer)
    assert places == sorted(places)


def test_every_room_has_its_paragraph() -> None:
    rooms = {path.parent.name for path in (ROOT / "advisor").glob("*/__init__.py")}
    told = set(re.findall(r"^\*\*`(\w+)`\*\*", PAGE, re.M)) | set(re.findall(r"\*\*`(\w+)`\*\*", PAGE))
    assert rooms <= told


def test_the_table_of_folders_is_that_of_the_code() -> None:
    assert runpy.run_path(str(ROOT / "docs" / "generate_architecture.py"))["page"]() == PAGE
