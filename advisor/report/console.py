"""Consoles that print in a terminal, in a pipe, without colour, and to a stream that knows no Unicode."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from rich.console import Console

__all__ = ["open_console", "speaks_unicode"]


def open_console(*, stderr: bool = False, stream: TextIO | None = None, width: int | None = None) -> Console:
    """Open a console.

    A character that the stream cannot encode is replaced instead of raised: a table must not fail for a ``±``.
    Colour and width follow rich's rules (``NO_COLOR``, ``COLUMNS``; 80 columns and no colour in a pipe).

    Args:
        stderr: Whether to write to standard error rather than to standard output.
        stream: Another stream to write to.
        width: Fixed width in columns.
    """
    target = stream if stream is not None else (sys.stderr if stderr else sys.stdout)
    if isinstance(target, io.TextIOWrapper) and target.errors == "strict":
        target.reconfigure(errors="replace")
    return Console(file=target, width=width, highlight=False, soft_wrap=False)


def speaks_unicode(console: Console) -> bool:
    """Whether the console's stream can show more than ASCII."""
    return console.encoding.startswith("utf")
