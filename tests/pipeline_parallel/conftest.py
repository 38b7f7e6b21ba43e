"""What tests of pipelines share."""

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Launcher


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """All ranks of this process are forked from one that has loaded what they need."""
    with Launcher(tmp_path_factory.mktemp("launcher")) as launcher:
        yield launcher
