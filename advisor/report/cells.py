"""Parts of tables: words that are folded only where they may be, and the tables' common style."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.decide.candidate import Candidate
from advisor.decide.eligible import is_outpaced
from advisor.text.units import format_spread

__all__ = ["Folded", "Unbroken", "aligned", "fitting", "plain_table", "spread_cell", "two_lines"]

_LEFT = ("#", "fidelity")
"""Columns of left-aligned words; numbers are right-aligned."""


class Folded:
    """Words joined by a separator, folded only between them: a plus begins the new line, a comma ends the old one.

    Args:
        words: What is joined, e.g. methods.
        separator: What stands between.
    """

    def __init__(self, words: Sequence[str], *, separator: str = " + ") -> None:
        self._words = list(words)
        self._separator = separator

    def lines(self, width: int) -> list[str]:
        """The lines for a width; a single word that is longer stays whole on its own."""
        lines = self._words[:1] or [""]
        ends_line = self._separator.startswith(",")
        for number, word in enumerate(self._words[1:], 2):
            piece = self._separator + word
            room = width - (ends_line and number < len(self._words))  # for the comma that may follow
            if len(lines[-1]) + len(piece) <= room:
                lines[-1] += piece
            elif ends_line:
                lines[-1] += self._separator.rstrip()
                lines.append(word)
            else:
                lines.append(piece.lstrip())
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(self.lines(options.max_width)))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest word to everything on one line."""
        longest = max((len(word) + len(self._separator.lstrip()) for word in self._words), default=0)
        whole = len(self._separator.join(self._words))
        return Measurement(min(longest, whole), whole).with_maximum(options.max_width)


class Unbroken:
    """Words folded only at blanks: one that is wider than the screen, such as an address, stays whole to be copied.

    Print it with ``crop=False``, and outside of tables, which would cut it.

    Args:
        text: The words.
        style: Of the words.
        head: What the first line begins with; the others are indented as far.
    """

    def __init__(self, text: str, *, style: str = "", head: Text | str = "") -> None:
        self._text, self._style, self._head = text, style, head

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, options.max_width - len(self._head))
        lines = textwrap.wrap(self._text, room, break_long_words=False, break_on_hyphens=False) or [""]
        for number, line in enumerate(lines):
            head = " " * len(self._head) if number else self._head
            yield Text.assemble(head, (line, self._style), no_wrap=True, overflow="ignore")


def spread_cell(candidate: Candidate) -> tuple[str, str]:
    """The spread of a measurement. If its timing was ended early, its few steps say nothing about that."""
    spread = "early" if is_outpaced(candidate) else format_spread(candidate.measured.relative_spread)
    return f" {spread:>5}", "dim"


def plain_table(title: str, *, expand: bool = False) -> Table:
    """A table with a heading and one rule: vertical lines would cost a fifth of 80 columns."""
    return Table(
        title=title,
        expand=expand,
        title_justify="left",
        title_style="bold",
        header_style="cyan",
        box=box.SIMPLE_HEAD,
        # The box itself puts one blank between columns.
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def fitting(columns: Mapping[str, int], width: int) -> Mapping[str, int]:
    """The columns that fit a width: without the class of fidelity, and then without the drift, where all do not."""
    for left_out in ("fidelity", "loss drift", "drift"):
        if sum(columns.values()) - 1 > width:
            columns = {heading: wide for heading, wide in columns.items() if heading != left_out}
    return columns


def aligned(cells: Sequence[Text], columns: Mapping[str, int]) -> Text:
    """One line of cells without a table around it: numbers right-aligned, words left-aligned.

    Args:
        cells: As many of the columns as there are, from the left.
        columns: Heading -> width, the blank behind it included.
    """
    line = Text(no_wrap=True)
    for (heading, width), cell in zip(columns.items(), cells, strict=False):
        blank = " " * max(0, width - 1 - len(cell))
        if heading in _LEFT:
            line.append(cell).append(blank + " ")
        else:
            line.append(blank).append(cell).append(" ")
    return line


def two_lines(
    head: Text, words: Sequence[str], values: Text, role: Text, *, style: str, gap: int, width: int
) -> RenderResult:
    """A row that is too wide for one line: number and methods, and the other cells below them.

    Args:
        head: The number, as wide as its column.
        words: The methods.
        values: The other cells, indented as wide as the number.
        role: Ends the second line if short enough, else gets its own line.
        style: Of everything; without one the methods are bold.
        gap: Blanks before the role.
        width: Of the console.
    """
    for position, line in enumerate(Folded(words).lines(width - len(head))):
        yield Text(head.plain if position == 0 else " " * len(head), style=style).append(line, style=style or "bold")
    values.stylize(style)
    if len(values) + gap + len(role) <= width:
        yield values.append(" " * gap).append(role)
    else:
        yield values
        yield Padding(role, (0, 0, 0, len(head)))
