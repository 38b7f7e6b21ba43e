"""What holds for every test."""

import gc
import os
from collections.abc import Iterator

import pytest

from advisor.trial.forking import servers_are_kept

# Test processes share the cores, and every worker that they start inherits this: threads that wait for each other
# on a busy machine make small steps a hundred times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="session")
def nothing_is_kept_for_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Predictions go to a folder of the tests."""
    before = os.environ.get("MOMADVISE_CACHE")
    os.environ["MOMADVISE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["MOMADVISE_CACHE"]
    else:
        os.environ["MOMADVISE_CACHE"] = before


@pytest.fixture(autouse=True, scope="session")
def libraries_are_loaded_once() -> Iterator[None]:
    """Workers of all tests of this process are forked from one that has loaded torch."""
    with servers_are_kept():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first: at the end, a process would run one of them while the other has nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection() -> None:
    """Nothing that is imported goes again: it need not be looked for."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What the tests are made of lives to their end, and need not be gone through by every garbage collection."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
