"""docs/trainers.md is what the tables of exports say, neither less nor older."""

from __future__ import annotations

import runpy
from pathlib import Path

from advisor.exports.trainers import TARGETS
from advisor.methods.catalogue import CATALOGUE

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_committed_page_is_up_to_date() -> None:
    generator = runpy.run_path(str(DOCS / "generate_trainers.py"))
    assert (DOCS / "trainers.md").read_text() == generator["page"](), "run: python docs/generate_trainers.py"


def test_every_method_has_a_mark_for_every_trainer() -> None:
    text = (DOCS / "trainers.md").read_text()
    rows = {line.split("](")[0].removeprefix("| ["): line for line in text.splitlines() if "](methods.md#" in line}
    assert list(rows) == [method.name for method in CATALOGUE]
    for row in rows.values():
        cells = [cell.split() for cell in row.strip("|").split("|")[1:]]
        assert len(cells) == len(TARGETS)
        assert all(cell and {mark.strip("*") for mark in cell} <= {"=", "~", "A", "-"} for cell in cells)


def test_the_page_names_the_versions_and_reasons() -> None:
    text = (DOCS / "trainers.md").read_text()
    for target in TARGETS:
        assert f"{target.library} {target.version}" in text
        assert all(rule.text.replace("|", "\\|") in text for rule in target.rules)
