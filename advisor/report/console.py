"""Consoles that print in a terminal, in a pipe, without colour, and to a stream that knows no Unicode.

Nothing that they are given steers the terminal: names and exceptions of the user's are shown with escapes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from advisor.text.printable import printable
from advisor.text.ranges import digits

__all__ = ["SafeConsole", "speaks_unicode"]

_SIZES = ("COLUMNS", "LINES", "JUPYTER_COLUMNS", "JUPYTER_LINES")
_LARGEST_SIZE = 10_000


class SafeConsole(Console):
    """A console of rich's that lets only rich itself steer the terminal.

    Args:
        options: Of rich's. A size in the environment that is no number of columns or lines is no size.
    """

    def __init__(self, **options: Any) -> None:
        sizes = {name for name in _SIZES if not 0 < (digits(os.environ.get(name, "")) or 0) <= _LARGEST_SIZE}
        environment = {name: value for name, value in os.environ.items() if name not in sizes}
        super().__init__(_environ=environment, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments as rich does, with escapes in their texts."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text == "\n" or (text.isascii() and text.isprintable()):
                yield segment
            else:
                yield Segment(printable(text), segment.style)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """As rich does; in a pipe or a file without the spaces with which rich fills lines up."""
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else re.sub(r" +$", "", text, flags=re.MULTILINE)


def speaks_unicode(console: Console) -> bool:
    """Whether the console's stream can show more than ASCII."""
    return console.encoding.startswith("utf")
