"""Data files are found in a checkout; tests/packaging looks for them in a wheel."""

from __future__ import annotations

from pathlib import Path

from advisor.package_data import data_folder

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_has_them_at_its_top() -> None:
    assert data_folder("profiles") == ROOT / "profiles"
    assert data_folder("search_spaces") == ROOT / "search_spaces"
