"""While a large library is imported, garbage is not looked for; afterwards as before."""

from __future__ import annotations

import gc

import pytest

from advisor.workload.quick_imports import quick_imports


def test_collection_rests_meanwhile_and_goes_on_whatever_happens() -> None:
    @quick_imports()
    def broken() -> None:
        assert not gc.isenabled()
        raise ImportError("broken")

    with pytest.raises(ImportError, match="broken"):
        broken()
    assert gc.isenabled()


def test_who_collects_nothing_goes_on_doing_so() -> None:
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
