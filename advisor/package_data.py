"""Where the data files are: next to the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

__all__ = ["data_folder"]


def data_folder(name: Literal["profiles", "search_spaces"]) -> Path:
    """Find a folder of data files.

    A wheel carries them as ``advisor/data/<name>`` (``force-include`` in ``pyproject.toml``); a checkout or an
    editable install has them at the top of the repository, where people look for them.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "data" / name, package.parent / name)
    for folder in candidates:
        if folder.is_dir():
            return folder
    looked = " nor ".join(str(folder) for folder in candidates)
    raise AssertionError(f"this installation of momadvise is incomplete: neither {looked} exists")
