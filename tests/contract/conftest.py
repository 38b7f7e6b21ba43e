"""What the suites do to run every method in a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import import_bitsandbytes, uncompiled_optimizers


@pytest.fixture(autouse=True, scope="package")
def _quick_compiler() -> Iterator[None]:
    with quick_compiler():  # kernels are tested in tests/methods
        yield


@pytest.fixture(autouse=True)
def _libraries() -> Iterator[None]:
    """Compiled, torchao's optimizers have a test of their own."""
    import_bitsandbytes()
    with uncompiled_optimizers():
        yield
