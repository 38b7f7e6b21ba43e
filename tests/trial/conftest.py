from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from advisor.trial.process.runner import Runner
from tests.trial.specs import my_children


@pytest.fixture(autouse=True, scope="package")
def garbage_is_collected_again() -> Iterator[None]:
    """Trials that run in this process freeze what they find, as they do in a worker."""
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Runs trials in processes, of which none is left at the end."""
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []
