"""Where the seconds of a run went, as a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, ConsoleOptions, RenderResult

from advisor.report.cells import plain_table
from advisor.text.units import format_percent

__all__ = ["TimingsTable"]


class TimingsTable:
    """What a run was busy with, the longest first.

    Args:
        timings: What -> seconds.
    """

    def __init__(self, timings: Mapping[str, float]) -> None:
        self._timings = timings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the width at hand; nothing where nothing is known."""
        if not self._timings:
            return
        whole = sum(self._timings.values()) or 1.0
        table = plain_table("Where the time went")
        table.add_column("what")
        table.add_column("seconds", justify="right", no_wrap=True)
        table.add_column("share", justify="right", no_wrap=True)
        for what, seconds in sorted(self._timings.items(), key=lambda one: -one[1]):
            table.add_row(what, f"{seconds:.1f}", format_percent(seconds / whole))
        yield table
