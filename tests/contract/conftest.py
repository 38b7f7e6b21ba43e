"""What holds for every test of the contracts."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.methods.tiny import import_bitsandbytes, uncompiled_optimizers


@pytest.fixture(autouse=True)
def _libraries() -> Generator[None, None, None]:
    """Compiled, torchao's optimizers have a test of their own."""
    import_bitsandbytes()
    with uncompiled_optimizers():
        yield
