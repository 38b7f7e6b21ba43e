"""The page of what one block keeps is that of the stored lines, and all of them are near their formulas."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.block_activations.forms import DEGREES, FORMS, PARTS
from benchmarks.block_activations.page import Measured, page

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def stored() -> list[Measured]:
    lines = (RESULTS / "block-activations.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Measured) for line in lines]


def test_the_page_is_that_of_the_stored_lines() -> None:
    assert (RESULTS / "block-activations.md").read_text(encoding="utf-8") == page(stored())


def test_every_form_was_measured_within_two_percent_of_its_formula() -> None:
    known = {(one.form, one.degree): one.units for one in stored()}
    assert known == {
        (form.name, degree): pytest.approx(form.bytes_at(degree), rel=0.02) for form in FORMS for degree in DEGREES
    }


def test_the_listed_parts_are_the_terms_of_the_paper() -> None:
    terms: dict[str, float] = {}
    for part in PARTS:
        terms[part.term] = terms.get(part.term, 0) + part.coefficient
    assert (terms["attention"], terms["MLP"], terms["normalizations"]) == (11, 19, 4)
    assert sum(terms.values()) == FORMS[0].bytes_at(1)
