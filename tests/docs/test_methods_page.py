"""docs/methods.md is what the catalogue declares, neither less nor older."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from advisor.methods.catalogue import CATALOGUE

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLES = ("Measured on ", "Simulated on ")


def test_the_committed_page_is_up_to_date() -> None:
    generator = runpy.run_path(str(DOCS / "generate_methods.py"))
    assert (DOCS / "methods.md").read_text() == generator["page"](), "run: python docs/generate_methods.py"


def test_the_page_tells_everything_that_a_method_declares() -> None:
    text = (DOCS / "methods.md").read_text()
    sections = dict(section.split("\n", 1) for section in text.split("\n## ")[1:])
    sections = {title: section for title, section in sections.items() if not title.startswith(TABLES)}
    assert list(sections) == [method.name for method in CATALOGUE]
    for method in CATALOGUE:
        section = sections[method.name]
        for declared in (method.summary, method.costs, method.pays, method.does_not_pay, method.citation):
            assert declared in section
        assert method.fidelity.value in section
        assert all(category.value in section for category in method.saves)
        assert all(conflict.reason in section for conflict in method.conflicts)
        assert all(library in section for library in method.requires)
        assert method.extra is None or f"momadvise[{method.extra}]" in section
        for parameter in method.parameters:
            assert all(f"`{choice}`" in section for choice in parameter.choices)


def test_every_method_for_one_device_is_in_a_table() -> None:
    sections = (DOCS / "methods.md").read_text().split("\n## ")
    tables = [section for section in sections if section.startswith(TABLES)]
    assert tables
    for method in (one for one in CATALOGUE if not (one.distributes or one.builds_on)):
        assert any(re.search(rf"^\| `{method.name}[(`]", table, re.MULTILINE) for table in tables)
