"""What the suites do to run every method in a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.methods.quick_compiler import quick_compiler


@pytest.fixture(autouse=True, scope="package")
def _quick_compiler() -> Iterator[None]:
    with quick_compiler():  # kernels are tested in tests/methods
        yield
