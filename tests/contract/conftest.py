"""What holds for every test of the contracts."""

from __future__ import annotations

import pytest

from tests.methods.tiny import import_bitsandbytes, import_torchao


@pytest.fixture(autouse=True)
def _uncompiled_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of torchao's optimizers without kernels, which take seconds to compile; compiled, they are tested once."""
    import_bitsandbytes()
    import_torchao()
    monkeypatch.setattr("advisor.methods.low_bit_adam.kernels_are_compiled", lambda: False)
