"""The browser, once for each module, and pages of recorded studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .chrome import Chrome, chrome_or_skip
from .pages import PAGES, write_page


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with chrome_or_skip() as found:
        yield found


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``faster.html`` and the others."""
    folder = tmp_path_factory.mktemp("pages")
    for name in PAGES:
        write_page(name, folder / f"{name}.html")
    return folder
