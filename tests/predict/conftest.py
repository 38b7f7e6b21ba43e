from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_older_is_scanned() -> None:
    """As in a worker: every trace collects garbage, and most of what it would look at are the objects of libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="package")
def garbage_is_collected_again() -> Iterator[None]:
    yield
    gc.unfreeze()
