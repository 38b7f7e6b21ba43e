"""What ``--json`` prints is what it printed before: scripts read it."""

from __future__ import annotations

import pytest

from .documents import DOCUMENTS, FOLDER


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_document_is_to_the_byte_what_it_was(name: str) -> None:
    assert DOCUMENTS[name]() == (FOLDER / f"{name}.json").read_text(encoding="utf-8")
