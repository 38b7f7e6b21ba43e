from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_older_is_scanned() -> Iterator[None]:
    """As in a worker: libraries' hundreds of thousands of objects are not looked at in every measurement."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
