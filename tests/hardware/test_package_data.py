"""Data files are found from a checkout and from an installed wheel alike."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from advisor.package_data import data_folder

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_has_them_at_its_top() -> None:
    assert data_folder("profiles") == ROOT / "profiles"
    assert data_folder("search_spaces") == ROOT / "search_spaces"


@pytest.mark.slow
def test_a_wheel_carries_them_and_finds_them(tmp_path: Path) -> None:
    # With the build backend at hand no network is needed; without it pip fetches it, as it did to install this.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--quiet", *isolation]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], check=True, capture_output=True)
    wheel = next(tmp_path.glob("momadvise-*.whl"))
    installed = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(installed)
    program = (
        "from advisor.package_data import data_folder as d;"
        "print(d.__code__.co_filename); print(sorted(p.name for n in ('profiles', 'search_spaces')"
        " for p in d(n).glob('*.yaml')))"
    )
    run = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(installed)!r}); {program}"]
    result = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True)
    file, names = result.stdout.splitlines()
    assert file.startswith(str(installed))
    shipped = [path.name for folder in ("profiles", "search_spaces") for path in (ROOT / folder).glob("*.yaml")]
    assert names == str(sorted(shipped))
    assert "smoke.yaml" in names
