"""Versions of the packages that a measurement depends on, read from metadata: nothing is imported."""

from __future__ import annotations

import platform
from importlib import metadata

from advisor.version import __version__

__all__ = ["versions"]

_PACKAGES = ("torch", "transformers", "bitsandbytes", "triton")


def versions() -> dict[str, str]:
    """Package -> version, for those that are installed."""
    found = {"momadvise": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
