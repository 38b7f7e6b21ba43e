from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests import quick_workers


@pytest.fixture(autouse=True)
def nothing_older_is_scanned() -> None:
    """As in a worker: libraries' hundreds of thousands of objects are not looked at in every measurement."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="package")
def garbage_is_collected_again() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="package")
def measurements_take_their_time() -> Iterator[None]:
    """Here it is the measuring itself that is looked at."""
    with quick_workers.usual_speed():
        yield
