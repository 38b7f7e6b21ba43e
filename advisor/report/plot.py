"""Cost against latency, drawn with characters: a point is the number that it has in the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from advisor.decide.candidate import Recommendation
from advisor.report.frontier_table import DOMINATED_ROWS
from advisor.report.points import ITERATIONS, entries
from advisor.text.units import format_seconds, format_usd

__all__ = ["CostPlot"]

_WIDTH = 80
_ROWS = 13
_MARGIN = 10
_LOG_FROM = 5.0
"""An axis is logarithmic if its largest value is so many times the smallest: nearby points would merge otherwise."""

_NEARBY = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


class _Axis:
    """Positions of values on a line of cells."""

    def __init__(self, values: Sequence[float], cells: int) -> None:
        self.low, self.high = min(values), max(values)
        self.logarithmic = self.high / self.low >= _LOG_FROM
        self._scale: Callable[[float], float] = math.log if self.logarithmic else float
        self._cells = cells

    def cell(self, value: float) -> int:
        """Where a value lies; in the middle if there is only one."""
        low, high = self._scale(self.low), self._scale(self.high)
        share = 0.5 if high == low else (self._scale(value) - low) / (high - low)
        return round(share * (self._cells - 1))

    @property
    def middle(self) -> float:
        """The value in the middle."""
        return math.sqrt(self.low * self.high) if self.logarithmic else (self.low + self.high) / 2


class CostPlot:
    """The points of the plane; low and left is better, and the pick stands in brackets."""

    def __init__(self, recommendation: Recommendation) -> None:
        assert recommendation.frontier is not None, "only the goal 'cheapest' has a frontier"
        self._pick = recommendation.frontier.pick + 1
        self._entries = entries(recommendation, dominated=DOMINATED_ROWS)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Below a blank line; nothing for a single point."""
        if len(self._entries) < 2:
            return
        columns = min(options.max_width, _WIDTH) - _MARGIN - 2
        # Room for a label at either end.
        across = _Axis([entry.point.latency_seconds for entry in self._entries], columns - 6)
        up = _Axis([entry.usd for entry in self._entries], _ROWS)
        canvas, lost = self._canvas(across, up, columns)
        vertical, corner, horizontal = ("|", "+", "-") if options.ascii_only else ("│", "└", "─")
        yield Text()
        yield Text(f"$ for {ITERATIONS} iterations{_scale(up)}", style="bold")
        ticks = {up.cell(value): format_usd(value) for value in (up.low, up.middle, up.high)}
        for row in reversed(range(_ROWS)):
            axis = f"{ticks.get(row, ''):>{_MARGIN - 1}} {vertical}"
            yield Text.assemble((axis, "dim"), canvas[row], no_wrap=True)
        yield Text(" " * _MARGIN + corner + horizontal * columns, style="dim", no_wrap=True)
        yield self._ticks_across(across, columns)
        title = f"latency of an iteration{_scale(across)}"
        yield Text(f"{title:>{_MARGIN + 1 + columns}}", style="bold", no_wrap=True)
        size = sum(entry.dominated is None for entry in self._entries)
        frontier = "It alone is the frontier." if size == 1 else f"1 to {size}: the frontier."
        caption = f"[{self._pick}]: picked. {frontier} Low and left is better."
        if lost:
            caption += f" Not drawn for lack of room: {', '.join(str(number) for number in lost)}."
        yield Text(caption, style="dim")

    def _canvas(self, across: _Axis, up: _Axis, columns: int) -> tuple[list[Text], list[int]]:
        """The rows from the lowest, and the numbers that found no place. The frontier is placed first."""
        cells = [[" "] * columns for _ in range(_ROWS)]
        styles: list[tuple[str, int, int, int]] = []
        lost = []
        for entry in sorted(self._entries, key=lambda one: one.number != self._pick):
            picked = entry.number == self._pick
            label = f"[{entry.number}]" if picked else str(entry.number)
            x, y = across.cell(entry.point.latency_seconds) + 2, up.cell(entry.usd)
            place = _free_place(cells, x - picked, y, len(label))
            if place is None:
                lost.append(entry.number)
                continue
            column, row = place
            cells[row][column : column + len(label)] = label
            style = "bold green" if picked else "dim" if entry.dominated else "bold"
            styles.append((style, row, column, column + len(label)))
        rows = [Text("".join(row), no_wrap=True) for row in cells]
        for style, row, begin, end in styles:
            rows[row].stylize(style, begin, end)
        return rows, lost

    def _ticks_across(self, across: _Axis, columns: int) -> Text:
        line = [" "] * columns
        for value in (across.low, across.middle, across.high):
            label = format_seconds(value)
            begin = max(0, min(across.cell(value) + 2 - len(label) // 2, columns - len(label)))
            line[begin : begin + len(label)] = label
        return Text(" " * (_MARGIN + 1) + "".join(line), style="dim", no_wrap=True)


def _free_place(cells: list[list[str]], x: int, y: int, length: int) -> tuple[int, int] | None:
    """The place itself or one beside it, with a blank on either side so that two numbers do not become one."""
    for right, up in _NEARBY:
        column, row = x + right * (length + 1), y + up
        inside = 0 <= row < len(cells) and 0 <= column <= len(cells[row]) - length
        if inside and set(cells[row][max(0, column - 1) : column + length + 1]) == {" "}:
            return column, row
    return None


def _scale(axis: _Axis) -> str:
    return " (log scale)" if axis.logarithmic else ""
