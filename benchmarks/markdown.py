"""Pieces of Markdown that the generated pages share: dates, versions, numbers and table cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["cell", "days", "number", "packages"]


def days(dates: Iterable[str]) -> str:
    """The first and the last of some ISO dates, or the only one."""
    ordered = sorted(set(dates))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def packages(versions: Iterable[Mapping[str, str]]) -> str:
    """Every package with all of its versions, in order of first appearance."""
    found: dict[str, dict[str, None]] = {}
    for one in versions:
        for package, version in one.items():
            found.setdefault(package, {})[version] = None
    return ", ".join(f"{package} {' and '.join(several)}" for package, several in found.items())


def number(value: float | None) -> str:
    """Three digits, or all digits before the point; empty for ``None``."""
    return "" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def cell(text: str) -> str:
    """Text on one line of a table, whatever a library raised."""
    return " ".join(text.split()).replace("|", "/")
