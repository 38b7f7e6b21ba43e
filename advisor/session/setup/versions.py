"""Versions of the packages that a measurement depends on, read from metadata: nothing is imported."""

from __future__ import annotations

import platform
from importlib import metadata

from advisor.methods.catalogue import CATALOGUE
from advisor.version import __version__

__all__ = ["versions"]

_PACKAGES = ("torch", "transformers", "triton")
"""What every training depends on; the methods say which libraries they need besides."""


def versions() -> dict[str, str]:
    """Package -> version, for those that are installed."""
    found = {"momadvise": __version__, "python": platform.python_version()}
    optional = sorted({library for method in CATALOGUE for library in method.requires} - set(_PACKAGES))
    for package in (*_PACKAGES, *optional):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
