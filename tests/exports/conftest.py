"""What libraries keep for the whole process does not outlive a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def accelerate_forgets() -> Iterator[None]:
    """Arguments of a trainer set variables of the environment, and the state that all accelerators share."""
    before = dict(os.environ)
    os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"
    yield
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.clear()
    os.environ.update(before)
