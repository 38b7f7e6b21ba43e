"""Where the seconds of a run went, as a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType

from advisor.report.cells import plain_table
from advisor.text.units import format_percent

__all__ = ["timings_table"]


def timings_table(timings: Mapping[str, float]) -> RenderableType:
    """What a run was busy with, the longest first; empty where nothing is known.

    Args:
        timings: What -> seconds.
    """
    if not timings:
        return Group()
    whole = sum(timings.values()) or 1.0
    table = plain_table("Where the time went")
    table.add_column("what")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for what, seconds in sorted(timings.items(), key=lambda one: -one[1]):
        table.add_row(what, f"{seconds:.1f}", format_percent(seconds / whole))
    return table
