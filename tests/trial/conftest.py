from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def garbage_is_collected_again() -> Iterator[None]:
    """Trials that run in this process freeze what they find, as they do in a worker."""
    yield
    gc.unfreeze()
