"""One tuning, whose policy is checked by all tests of this room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import advisor

from .projects import Project


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> advisor.Answer:
    """The answer for the project, measured in a folder that is not looked at again."""
    folder = tmp_path_factory.mktemp("measured")
    before = Path.cwd()
    os.chdir(folder)
    try:
        return Project(folder).tune(folder / "out")
    finally:
        os.chdir(before)
