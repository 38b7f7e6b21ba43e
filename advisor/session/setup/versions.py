"""Versions of the packages that a measurement depends on, read from metadata: nothing is imported."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata

from advisor.methods.catalogue import CATALOGUE
from advisor.methods.libraries import needed_by
from advisor.version import __version__

__all__ = ["versions"]

_PACKAGES = ("torch", "transformers", "triton")
"""What a training may depend on; the methods say which libraries they need besides."""


def versions(libraries: Iterable[str] | None = None) -> dict[str, str]:
    """Package -> version, for those that are installed.

    Args:
        libraries: The optional libraries in question; ``None`` for those of all methods.
    """
    found = {"momadvise": __version__, "python": platform.python_version()}
    optional = needed_by(CATALOGUE) if libraries is None else libraries
    for package in (*_PACKAGES, *sorted(set(optional) - set(_PACKAGES))):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
